"""`tamiyo train --env`: environments that end their process or take long, and evaluations by the actors;
`test_counting_runs` has others."""

from __future__ import annotations

from pathlib import Path

import pytest

from learner.run.checkpoint import load_checkpoint
from tests.support.launching import rows, tamiyo

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]
SMALL = {"learner__updates": 4, "learner__batch_steps": 256, "gym__max_segment_steps": 16, "run__reference_episodes": 6}


def run_of(folder: Path, name: str, **changes: object) -> list[str]:
    flags = {"run__root": folder, "run__name": "r", "learner__batch_episodes": 4, "actors__count": 1} | SMALL | changes
    named = [part for key, value in flags.items() for part in (f"--{key.replace('__', '.')}", str(value))]
    return ["--env", f"tests.support.env.gym_envs:tests/{name}-v0", *named]


def test_an_environment_that_ends_its_process_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    with tamiyo(tmp_path, "train", *run_of(tmp_path, "Leaving")) as run:
        assert run.wait(280) == 2
        assert run.left() == []
    assert "actor-0 died 8 times in a row: its environment ends its own process" in run.err
    assert "what actor-0 printed last:" in run.out
    assert "the licence has expired" in run.out


def test_resets_that_take_too_long_together_are_no_hang_but_a_single_one_is(tmp_path: Path) -> None:
    """Eight environments need 16 s for their first resets."""
    slow = {"actors__hang_s": 8, "learner__updates": 1, "gym__kwargs": "seconds=2"}
    with tamiyo(tmp_path, "train", *run_of(tmp_path, "SlowReset", **slow)) as run:
        run.wait_for(lambda: bool(rows(tmp_path / "r" / "metrics.jsonl")), 120.0)
        assert "has hung" not in run.out
    endless = slow | {"gym__kwargs": "seconds=99", "run__name": "s"}
    with tamiyo(tmp_path, "train", *run_of(tmp_path, "SlowReset", **endless)) as run:
        assert run.wait(120) == 2
        assert run.left() == []
    assert run.out.count("actor-0 has hung for 8 s; it is killed and restarted") == 3
    assert "in reset" in run.out
    assert "actor-0 hung 3 times in a row: raise actors.hang_s if a single reset or step" in run.err


def test_an_actor_evaluates_the_policy_while_it_trains(tmp_path: Path) -> None:
    flags = run_of(tmp_path, "Scripted", run__evaluate_every=1, learner__updates=40)
    with tamiyo(tmp_path, "train", *flags) as run:
        assert run.wait(220) == 0, run.err
        assert run.left() == []
    found = rows(tmp_path / "r" / "evaluations.jsonl")
    assert len(found) >= 2
    assert found[-1]["update"] == 40  # the last policy
    best = max(found, key=lambda row: (row["return_mean"], row["update"]))
    assert load_checkpoint(tmp_path / "r" / "best.safetensors").progress.update == best["update"]
    assert f"the best policy is that of update {best['update']}" in run.out
