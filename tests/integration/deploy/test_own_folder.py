"""Scripts and environments in a folder of the user's, which also has a file `deploy.py`."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.launching import running

pytestmark = [pytest.mark.integration, pytest.mark.slow]
ROOT = Path(__file__).parents[3]
SCRIPT = """
import tamiyo

seen = []


def on_update(metrics):
    seen.append(metrics["update"])
    return len(seen) >= 2


if __name__ == "__main__":
    settings = {
        "gym": {"id": "corridor:Corridor-v0", "max_segment_steps": 64},
        "run": {"name": "mine", "reference_episodes": 0},
        "actors": {"count": 1},
        "learner": {"batch_steps": 256},
    }
    status = tamiyo.train(settings, on_update=on_update)
    print("the script:", status, seen[:2], tamiyo.load_policy("runs/mine").act(3) in (0, 1))
"""


def outcome(folder: Path, *words: str) -> str:
    (folder / "deploy.py").write_text("raise SystemExit('this file is not imported')\n")
    with running(folder, ["env", "-C", str(folder), sys.executable, *words], {}) as command:
        assert command.wait(200) == 0, command.out + command.err
        assert command.left() == []
        return command.out


@pytest.mark.timeout(240)
def test_a_script_trains_on_an_environment_beside_it_and_stops_the_run(tmp_path: Path) -> None:
    """The actors, processes of Ray, import the environment; the learner must not take the file for our package."""
    page = (ROOT / "docs" / "gymnasium.md").read_text()
    (code,) = re.findall(r"^```python\n(# corridor.py\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "corridor.py").write_text(code)
    (tmp_path / "script.py").write_text(SCRIPT)
    assert "the script: 130 [1, 2] True" in outcome(tmp_path, "script.py")


@pytest.mark.long
@pytest.mark.timeout(240)
def test_the_example_from_python(tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "train_cartpole.py", tmp_path)
    printed = outcome(tmp_path, "train_cartpole.py", "runs", "5000")
    assert re.search(r"^step \d+: return \d", printed, re.MULTILINE)
    assert re.search(r"^one episode returned \d+$", printed, re.MULTILINE)
