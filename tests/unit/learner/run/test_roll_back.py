"""Gradients that are not finite: skipped and counted; three updates in a row restore the last sound checkpoint."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from actors.errors import UserError
from actors.policy.saved import CheckpointKey
from learner.run.checkpoint import list_checkpoints, load_checkpoint, newest_sound
from learner.train import Learner
from tests.support.learning.toy_learner import ToyProducer, lines, make_learner
from tests.support.stores import new_transport


class Spoiled:
    """Makes the gradients of some updates NaN, by the learner's own count."""

    def __init__(self, learner: Learner, updates: set[int]) -> None:
        self.learner, self.updates = learner, updates
        learner.network.norm.weight.register_hook(self)
        self.weights: dict[int, list[Tensor]] = {}
        learner.report = self.after

    def __call__(self, grad: Tensor) -> Tensor:
        return grad * torch.nan if self.learner.progress.update in self.updates else grad

    def after(self, metrics: dict[str, float]) -> None:
        state = self.learner.network.state_dict()
        self.weights[int(metrics["update"])] = [t.clone() for t in state.values()]


def run(folder: Path, bad: set[int], updates: int, **changes: Any) -> tuple[Learner, Spoiled]:
    store = new_transport()
    learner = make_learner(folder, store, updates=updates, **changes)
    spoiled = Spoiled(learner, bad)
    learner.run(ToyProducer(store))
    return learner, spoiled


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(map(torch.equal, a, b))


def test_two_broken_updates_are_counted_and_forgotten_after_a_sound_one(tmp_path: Path) -> None:
    learner, _ = run(tmp_path, {1, 2}, 4)
    assert [line["skipped_steps"] for line in lines(tmp_path / "metrics.jsonl")] == [0.0, 1.0, 1.0, 0.0]
    assert (learner.progress.broken_updates, learner.progress.generation, learner.notes) == (0, 1, [])


@pytest.mark.parametrize("checkpoint_every", [1, 2])
def test_three_in_a_row_go_back_to_the_last_sound_checkpoint(tmp_path: Path, checkpoint_every: int) -> None:
    """Updates 3, 4 and 5 (of 0, 1, ...) are broken: statistics moved meanwhile, and come back with the weights."""
    learner, spoiled = run(tmp_path, {3, 4, 5}, 8, checkpoints_kept=2, checkpoint_every=checkpoint_every, gamma=0.9)
    ledger = learner.transport.ledger()
    ledger.check()
    sound = 3 if checkpoint_every == 1 else 2
    assert not same(spoiled.weights[sound], spoiled.weights[5])  # value and observation statistics, at least
    assert same(spoiled.weights[6], spoiled.weights[sound])
    assert not same(spoiled.weights[7], spoiled.weights[6])
    assert (learner.progress.update, learner.progress.generation) == (8, 2)
    (note,) = learner.notes
    assert note.startswith("3 updates in a row had gradients with NaN or Inf")
    assert f"rolled back to the weights of update {sound}" in note
    assert (ledger.trained, ledger.trained_then_lost) == (32 - 4 * (6 - sound), 4 * (6 - sound))
    assert len(list_checkpoints(tmp_path / "checkpoints")) <= 3
    rows = lines(tmp_path / "metrics.jsonl")
    assert [row["update"] for row in rows] == list(range(1, 9))
    assert all(a["policy_version"] < b["policy_version"] for a, b in itertools.pairwise(rows))  # they never repeat


def test_a_sound_checkpoint_outlives_the_broken_ones(tmp_path: Path) -> None:
    """With one kept, the only checkpoint of finite gradients is not the newest."""
    learner, _ = run(tmp_path, {1, 2}, 3, checkpoints_kept=1)
    names = [p.name for p in list_checkpoints(tmp_path / "checkpoints")]
    assert names == [CheckpointKey(1, update).file_name for update in (1, 3)]
    assert newest_sound(tmp_path / "checkpoints") == tmp_path / "checkpoints" / names[0]
    assert load_checkpoint(tmp_path).progress.broken_updates == learner.progress.broken_updates == 2


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (range(3), r"3 updates in a row .* no earlier checkpoint to roll back to: lower learner.lr"),
        (range(1, 7), "again after the rollback at update 4"),
    ],
)
def test_without_a_sound_update_to_go_back_to_a_run_ends_with_the_reason(
    tmp_path: Path, bad: range, reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        run(tmp_path, set(bad), 12)


def test_a_run_may_roll_back_again_after_a_sound_update(tmp_path: Path) -> None:
    learner, _ = run(tmp_path, {1, 2, 3, 5, 6, 7}, 9)
    assert len(learner.notes) == 2
