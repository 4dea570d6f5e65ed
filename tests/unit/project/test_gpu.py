"""`make gpu`: steps with time limits, what is left out, and one JSON; on a machine without a GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import psutil
import pytest
import torch
from packaging.utils import canonicalize_name

from benchmarks.gpu import LIMIT_S, REQUIREMENTS, STEPS, Step, missing, run_step
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[3]
OF_TORCH = {"torch", "filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "sympy", "typing-extensions"}
PROGRAM = """
import json, pathlib, subprocess, sys, time
print("left out: the moon", flush=True)
if sys.argv[1] == "child":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    pathlib.Path(sys.argv[2]).write_text(str(child.pid))
    time.sleep(60)
if sys.argv[1] != "silent":
    target = {"name": "speed", "value": 2.0, "goal": 3.0, "met": False}
    result = {"targets": [target], "machine": {}, "rows": [{"host": "a"}]}
    pathlib.Path(sys.argv[-1]).write_text(json.dumps(result))
if sys.argv[1] == "fails":
    sys.exit("ValueError: no such thing")
"""


@pytest.mark.parametrize(
    ("what", "status", "why", "limit_s"),
    [
        ("passes", "passed", "", 20.0),
        ("fails", "failed", "ValueError: no such thing", 20.0),
        ("silent", "failed", "it ended without writing its result", 20.0),
        ("child", "timed out", "more than 2 s", 1.5),
    ],
)
def test_a_step_says_why_it_failed_and_ends_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, status: str, why: str, limit_s: float
) -> None:
    """The program above is a step that does what its name says."""
    (tmp_path / "stand_in.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    step = Step(what, "stand_in", limit_s, (), ())
    outcome = run_step(step, (what, str(tmp_path / "child")), limit_s, tmp_path)
    assert (outcome.status, outcome.why, outcome.left_out) == (status, why, ["the moon"])
    assert [target["name"] for target in outcome.targets] == ["speed"] * (what in ("passes", "fails"))
    if what == "child":
        child = int((tmp_path / "child").read_text())  # which nobody may have reaped yet
        wait_for(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)


def test_tests_are_counted_and_the_first_failure_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text("def test_right(): pass\ndef test_wrong(): assert 1 == 2\n")
    flags = ("-q", "-p", "no:cacheprovider", "-c", "/dev/null", str(tmp_path / "test_some.py"))
    outcome = run_step(Step("tests", "pytest", 60, (), ()), flags, 60, tmp_path)
    assert (outcome.status, outcome.targets[0]["value"]) == ("failed", 0.5)
    assert "test_wrong: assert 1 == 2" in outcome.why


def test_steps_fit_their_limit_and_missing_or_old_packages_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sum(step.limit_s for step in STEPS) <= LIMIT_S
    for name, version in (("some_thing", "1.10.0rc1"), ("other", "2.9.5")):
        (tmp_path / f"{name}-{version}.dist-info").mkdir()
        (tmp_path / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert missing("# Of others.\nSome-Thing>=1.2\nother>=2.10\nthird>=3\n") == ["other>=2.10", "third>=3"]


REQUIRED = {
    canonicalize_name(name): version
    for name, version in re.findall(r"^([\w.-]+)>=(\S+)", REQUIREMENTS.read_text(), re.MULTILINE)
}


def test_the_requirements_agree_with_the_package() -> None:
    """That they are complete is seen by running the steps with nothing else."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for line in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        name, _, version = line.partition(";")[0].partition(">=")
        assert REQUIRED.get(canonicalize_name(name), version) == version, line


BARE = """
import importlib, sys
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions
allowed = set(sys.argv[1].split())
refused = {
    package for package, owners in packages_distributions().items()
    if not {owner.lower().replace("_", "-").replace(".", "-") for owner in owners} & allowed
}
assert "ray" in refused
class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in refused else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Bare
for name in sys.argv[2].split():
    importlib.import_module(name)
import pytest
flags = "-q --collect-only -p pytest_timeout -p no:cacheprovider -m cuda tests"
sys.exit(pytest.main(flags.split()))
"""


@pytest.mark.long
def test_the_steps_import_nothing_else_nor_do_the_cuda_tests() -> None:
    allowed = {*REQUIRED, *OF_TORCH, "tamiyo"}
    programs = [step.program for step in STEPS if step.program != "pytest"]
    command = [sys.executable, "-c", BARE, " ".join(allowed), " ".join(programs)]
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=100)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    assert int(re.findall(r"(\d+)/\d+ tests collected", ended.stdout)[-1]) >= 10


def make_gpu(path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", "--json", str(path), *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=110)


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_without_a_gpu_nothing_runs_and_nothing_is_installed(tmp_path: Path) -> None:
    ended = make_gpu(tmp_path / "result.json")
    assert (ended.returncode, ended.stdout, list(tmp_path.iterdir())) == (2, "", [])
    assert ended.stderr.startswith("nothing ran: ")
    assert "no CUDA device: PyTorch " in ended.stderr


@pytest.mark.long
@pytest.mark.parametrize("step", ["cuda tests", "serve"])
def test_a_dry_run_takes_the_way_of_a_gpu(step: str, tmp_path: Path) -> None:
    """All steps take minutes: `make gpu GPU_OPTIONS=--dry-run`."""
    ended = make_gpu(tmp_path / "result.json", "--dry-run", "--only", step)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    content = json.loads((tmp_path / "result.json").read_text())
    (result,) = content["steps"]
    assert result["rows"]
    if step == "cuda tests" and content["machine"]["cuda"] is None:
        assert len(result["left_out"]) == len(result["rows"]) >= 10
    else:
        assert result["targets"]
