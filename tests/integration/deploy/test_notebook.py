"""The notebook runs offline within two minutes, and ends with a grown model and a picture of it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = [pytest.mark.integration, pytest.mark.long]
ROOT = Path(__file__).parents[3]


def test_the_notebook_grows_a_model_and_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    for proxy in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")  # nothing is fetched
    notebook = nbformat.read(ROOT / "examples/grow_a_model.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # kept without what a run prints
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    printed = "".join(output["text"] for output in outputs if output.output_type == "stream")
    assert "GERMINATE column 1" in printed
    sizes = re.findall(r"(\d+) parameters: ([\d.]+)%", printed)
    (bare, without), (grown, accuracy) = sizes
    assert int(grown) > int(bare)
    assert float(accuracy) > float(without) + 3
    assert any("image/png" in output.get("data", ()) for output in outputs)
