"""Scripts and environments in a folder of the user's, which also has files with the names of our packages."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from actors.kernels.cache import cache_dir
from actors.kernels.compile import compile_once
from tests.support.launching import running

pytestmark = [pytest.mark.integration, pytest.mark.slow]
ROOT = Path(__file__).parents[3]
TAMIYO = Path(sys.executable).with_name("tamiyo")
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


def add_names(folder: Path) -> None:
    """Write a file or a package with the name of each of ours."""
    for name in ("deploy.py", "actors.py", "learner/__init__.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"raise SystemExit('{name} was imported')\n")


def outcome(folder: Path, *words: str, timeout_s: float = 200.0) -> str:
    add_names(folder)
    with running(folder, ["env", "-C", str(folder), sys.executable, *words], {}) as command:
        assert command.wait(timeout_s) == 0, command.out + command.err
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
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("module", "env_id", "steps", "least"),
    [("catch", "Catch-v0", 150_000, 0.9), ("warehouse", "Warehouse-v0", 100_000, 0.7)],  # about twice what one run took
)
def test_the_command_learns_an_example_in_the_working_directory(
    tmp_path: Path, module: str, env_id: str, steps: int, least: float
) -> None:
    """`tamiyo` puts that folder on the path itself, and `python -m` does it first of all."""
    shutil.copy(ROOT / "examples" / f"{module}.py", tmp_path)
    flags = ["--env", f"{module}:{env_id}", "--total-steps", str(steps), "--stop-at-return", str(least)]
    train = [str(TAMIYO), "train", *flags, "--run.name", "r", "--run.reference_episodes", "2"]
    printed = outcome(tmp_path, *train, timeout_s=850.0)
    assert "the last 100 episodes returned" in printed  # samples of the policy
    assert "report: " in printed
    played = outcome(tmp_path, str(TAMIYO), "play", "runs/r", "--sampled")
    (mean,) = re.findall(r": 100 episodes, mean return ([\d.]+) ", played)
    assert float(mean) >= least - 0.1  # of 100 other episodes


def test_kernels_are_compiled_in_a_process_that_loads_our_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_names(tmp_path)
    fill = f"lambda precision: pathlib.Path({str(tmp_path / 'ours')!r}).write_text(actors.errors.__file__)"
    (tmp_path / "filling.py").write_text(f"import actors.errors, pathlib\nfill_cache = {fill}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cache_dir.cache_clear()
    try:
        compile_once("policy", "filling")
    finally:
        cache_dir.cache_clear()
    assert (tmp_path / "ours").read_text() == str(ROOT / "actors" / "errors.py")


@pytest.mark.long
@pytest.mark.timeout(240)
def test_the_example_from_python(tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "train_cartpole.py", tmp_path)
    printed = outcome(tmp_path, "train_cartpole.py", "runs", "5000")
    assert re.search(r"^step \d+: return \d", printed, re.MULTILINE)
    assert re.search(r"^one episode returned \d+$", printed, re.MULTILINE)
