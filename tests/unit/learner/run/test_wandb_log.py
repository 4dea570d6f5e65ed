"""Weights & Biases without a network: what is written offline is read back."""

from __future__ import annotations

import re
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from actors.errors import UserError
from learner.run.metrics_log import MetricsLog

wandb = pytest.importorskip("wandb", reason="the extra `wandb` is not installed")


@pytest.mark.slow
def test_a_run_and_its_resumption_are_one_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"learner": {"lr": 0.5}, "run": {"redis": "redis://h"}}))
    for update in (1, 2):
        with closing(MetricsLog(tmp_path, tmp_path, update - 1, wandb="a-project")) as log:
            log.write(update, {"return_mean": 10.0 * update, "entropy/op": 0.5})
    name = (tmp_path / "wandb_id").read_text()
    first, second = sorted(tmp_path.glob(f"wandb/offline-run-*/run-{name}.wandb"), key=lambda p: p.stat().st_mtime)
    for path, update in ((first, 1), (second, 2)):
        kept = path.read_bytes()
        for metric, value in (("update", update), ("return_mean", 10.0 * update), ("entropy/op", 0.5)):
            assert re.search(rb"\b%b\W{1,4}%b\W" % (metric.encode(), str(value).encode()), kept), metric
        assert b"redis://h" not in kept


def test_a_missing_package_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match="pip install"):
        MetricsLog(tmp_path, tmp_path, 0, wandb="a-project")


def test_without_a_project_the_package_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with closing(MetricsLog(tmp_path, tmp_path, 0)) as log:
        log.write(1, {"return_mean": 1.0})
    assert not (tmp_path / "wandb_id").exists()
