"""Custom tasks: by import string, by entry point, and the errors of wrong ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from actors.config import ConfigError, EnvConfig
from actors.env.env import SeedTrainingEnv
from actors.env.seed_fleet import SeedTrainingFleet
from actors.env.tasks import families, find_family, make_task, registry
from tests.support.env.walks import WAIT

ROOT = Path(__file__).parents[4]
MODULE = """
import numpy as np
from actors.env.tasks import Sizes, Split, Task, TaskFamily, draw_splits

def blobs(rng):
    "Two blobs of my own."
    def draw(n):
        y = rng.integers(0, 2, n)
        return rng.normal(y[:, None], 0.3, (n, 3)), y
    return Task("blobs", 2, *draw_splits(draw, Sizes(64, 32, 32)), host_width=5)

def failing(rng):
    raise KeyError("lost")

def wrong(rng):
    return [1, 2]

def high_label(rng):
    made = blobs(rng)
    made.val.y[0] = 2
    return made

def infinite(rng):
    made = blobs(rng)
    made.test.x[3, 1] = np.inf
    return made

def growing(rng):
    made = blobs(rng).train
    wider = Split(np.repeat(made.x, rng.integers(1, 9), axis=1), made.y)
    return Task("growing", 2, wider, wider, wider, host_width=5)

def no_rng():
    return None

number = 3
family = TaskFamily("mine", "heldout", "vector", "mine", blobs, Sizes(64, 32, 32))
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a module into the working directory, which is not on the path."""
    (tmp_path / "mytasks.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    monkeypatch.setattr(registry, "_IMPORTED", {})
    monkeypatch.delitem(sys.modules, "mytasks", raising=False)


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that puts an installed distribution with these entry points on the path."""

    def install(**points: str) -> None:
        info = tmp_path / "mytasks-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mytasks\nVersion: 1.0\n")
        lines = "".join(f"{name} = {value}\n" for name, value in points.items())
        (info / "entry_points.txt").write_text(f"[tamiyo.tasks]\n{lines}")
        monkeypatch.syspath_prepend(tmp_path)

    return install


def test_an_imported_task_runs_alone_and_in_a_mixed_fleet() -> None:
    made = make_task("mytasks:blobs", np.random.default_rng(0))
    assert (made.task_id, made.shape, made.sizes.val) == ("blobs", (3,), 32)
    assert find_family("mytasks:blobs").description == "Two blobs of my own."
    config = EnvConfig(tasks=("mytasks:blobs", "spirals"), horizon_epochs=2, inner_steps=1, batch_size=16)
    env = SeedTrainingEnv(config)
    env.reset(seed=0)
    env.step(WAIT)
    fleet = SeedTrainingFleet(config, 8, 0)
    fleet.reset(range(8))
    assert np.isfinite(fleet.step(np.stack([WAIT] * 8)).rewards).all()
    assert set(fleet.task_ids()) == {"blobs", "spirals"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere:blobs", "'nowhere:blobs' cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        ("mytasks:none", "'mytasks:none' cannot be imported: AttributeError: module 'mytasks' has no attribute 'none'"),
        ("mytasks:", "write it as package.module:factory"),
        ("mytasks:number", r"is a int: it must be a function \(rng\) -> Task"),
        ("mytasks:failing", "'mytasks:failing' failed: KeyError: 'lost'"),
        ("mytasks:no_rng", "'mytasks:no_rng' failed: TypeError"),
        ("mytasks:wrong", "returned a list: it must return a Task"),
        ("mytasks:high_label", "val.y ranges from 0 to 2; with 2 classes it must be in 0 to 1"),
        ("mytasks:growing", r"has shape \(21,\) in one draw and \(\d+,\) in another: every draw needs the same"),
        ("mytasks:infinite", "test.x has values that are not finite"),
    ],
)
def test_errors_of_custom_tasks_are_one_clear_line(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        SeedTrainingEnv(EnvConfig(tasks=(name,)))
    assert "\n" not in str(caught.value)


def test_an_entry_point_is_listed_and_made(offer: Callable[..., None]) -> None:
    offer(blobs="mytasks:blobs", mine="mytasks:family")
    assert make_task("blobs", np.random.default_rng(0)).task_id == "blobs"
    assert "blobs" in [f.name for f in families("train")]
    assert "mine" in [f.name for f in families("heldout")]
    with pytest.raises(ConfigError, match="did you mean 'blobs'"):
        find_family("blob")


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ({"lost": "broken:x"}, "'lost' of entry point broken:x cannot be loaded: ModuleNotFoundError"),
        ({"digits": "mytasks:blobs"}, "a task named 'digits', a name that is taken"),
    ],
)
def test_a_wrong_entry_point_affects_its_own_task_only(
    offer: Callable[..., None], point: dict[str, str], words: str
) -> None:
    offer(**point)
    assert make_task("moons", np.random.default_rng(0)).task_id == "moons"
    with pytest.raises(ConfigError, match=words):
        families()


def test_the_example_runs_from_its_folder() -> None:
    command, env = [sys.executable, f"{ROOT}/examples/own_task.py"], {"PYTHONPATH": str(ROOT), "PATH": ""}
    ended = subprocess.run(command, capture_output=True, text=True, env=env, timeout=100)
    assert ended.returncode == 0, ended.stderr
    assert "with one seed" in ended.stdout
