"""Learners are killed at every point between two steps that must agree, and several run at once on one run and one
store, under random faults: exactly one lineage survives.

Faults are SIGSTOP and SIGCONT (zombies) at random times and at critical steps, network outages, SIGKILL, and stores
that come back empty or older. A seed determines their order; their timing also depends on the machine.
"""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest
import torch.utils.tensorboard  # noqa: F401 (imported once, before the forks)

from deploy.launch.embedded_redis import EmbeddedRedis
from tests.support.chaos.forked_learner import Fault
from tests.support.chaos.histories import history

pytestmark = [pytest.mark.integration, pytest.mark.chaos]

CHANGES = ({}, {"checkpoint_every": 3, "checkpoints_kept": 2}, {"checkpoints_kept": 1})


def check_history(server: EmbeddedRedis, folder: Path, seed: int, faults: int) -> Counter[str]:
    with history(server, f"history{seed}", folder, seed, dict(CHANGES[seed % len(CHANGES)])) as run:
        run.run(faults)
        ledger = run.check()
    done = sum(run.faults.values())
    print(
        f"seed {seed}: {done} faults, {len(run.learners)} learners, {ledger.trained} episodes trained, "
        f"{ledger.trained_then_lost} then lost, {ledger.lost_with_store} lost with the store"
    )
    return run.faults


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [0, 1])
def test_ledger_checkpoint_rows_and_weights_agree(embedded_redis: EmbeddedRedis, tmp_path: Path, seed: int) -> None:
    faults = check_history(embedded_redis, tmp_path / "history", seed, 10)
    assert sum(faults.values()) >= 10


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_ledger_checkpoint_rows_and_weights_agree_after_three_hundred_faults(
    embedded_redis: EmbeddedRedis, tmp_path: Path
) -> None:
    faults: Counter[str] = Counter()
    for seed in range(100, 120):
        faults += check_history(embedded_redis, tmp_path / str(seed), seed, 16)
    print(f"{sum(faults.values())} faults in 20 histories: {dict(faults.most_common())}")
    assert sum(faults.values()) >= 300


POINTS = {  # the first checkpoint and the first publication are those of the new generation
    "taken": 4,
    "updated": 3,
    "before the link": 4,
    "after the link": 4,
    "acknowledged": 3,
    "published": 4,
}
"""Names of `forked_learner.POINTS`, and at which call a learner kills itself there."""


@pytest.mark.parametrize(
    "point", [pytest.param(p, marks=() if p in ("taken", "after the link") else pytest.mark.long) for p in POINTS]
)
def test_each_episode_is_trained_on_once_when_a_learner_is_killed(
    embedded_redis: EmbeddedRedis, namespace: str, tmp_path: Path, point: str
) -> None:
    with history(embedded_redis, namespace, tmp_path, 0, {}) as run:
        first = run.begin(Fault(point, POINTS[point], signal.SIGKILL))
        while first in run.living:
            run.act()
        assert first.was_killed
        run.rest()
        ledger, lineage = run.check(), run.lineage()
    assert len(lineage) == len(set(lineage)) == ledger.trained
    assert ledger.trained_then_lost == ledger.dead_lettered == ledger.lost_with_store == 0
