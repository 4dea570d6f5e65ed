"""A recurrent core learns to remember; one without a state stays at chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actors.config import PolicyConfig
from actors.policy.network import FactoredRecurrentActorCritic
from actors.rollout import wave as rollout
from actors.types.actions import ActionMasks, independent_spec
from actors.types.episode import EndReason, Episode
from actors.types.fleet_step import FleetStep
from actors.types.spaces import Spaces
from learner.config import LearnerConfig
from learner.ppo.batch import make_batch
from learner.ppo.optimizer import make_optimizer
from learner.ppo.update import PPOUpdate

RECALL = Spaces.flat(independent_spec([2]), 2)
STEPS = 4


class Recall:
    """A bit is shown at the first step alone and asked for at the last: 1 point for it, -1 for the other."""

    env_id, spaces, num_envs = "recall", RECALL, 64

    def reset(self, seeds: Sequence[int]) -> FleetStep:
        self.bits, self.t = np.array([seed % 2 for seed in seeds]), 0
        return self._show(np.zeros(self.num_envs, np.float32))

    def step(self, actions: NDArray[np.int64]) -> FleetStep:
        self.t += 1
        right = np.where(actions[:, 0] == self.bits, 1.0, -1.0)
        return self._show((right * (self.t == STEPS)).astype(np.float32))

    def task_ids(self) -> tuple[str, ...]:
        return ("recall",) * self.num_envs

    def timelines(self) -> tuple[Any, ...]:
        return ()

    def _show(self, rewards: NDArray[np.float32]) -> FleetStep:
        n, ends = self.num_envs, np.full(self.num_envs, self.t == STEPS)
        shown = np.where(self.bits == 1, 1.0, -1.0) * (self.t == 0)
        obs = np.stack([shown, np.full(n, self.t / STEPS)], 1).astype(np.float32)
        masks = ActionMasks(np.ones((n, 2), np.bool_), None, np.ones((n, 0), np.bool_))
        reasons = (EndReason.ENVIRONMENT if self.t == STEPS else None,) * n
        return FleetStep(obs, np.zeros((n, 0), np.int64), masks, rewards, ends, ends & False, reasons, ({},) * n)


def trained(
    core: str, critic: str, seed: int = 3, updates: int = 20
) -> tuple[FactoredRecurrentActorCritic, list[float]]:
    """A policy after training, and the share of right answers in each update's episodes."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    size = {"hidden_size": 16, "encoder_size": 16, "head_size": 16, "memory_cells": 4, "memory_size": 8}
    network = FactoredRecurrentActorCritic(RECALL, PolicyConfig(core=core, critic=critic, **size))  # type: ignore[arg-type]
    config = LearnerConfig(state_stride=1, update_epochs=4, target_kl=0.5, entropy_start=0.01, entropy_end=0.01)
    ppo = PPOUpdate(network, make_optimizer(network, 1e-2, 0.0), config)
    shares = []
    for update in range(updates):
        episodes = played(network, range(64 * update, 64 * update + 64))
        ppo(make_batch(episodes, RECALL), update, 0)
        shares.append(share_right(episodes))
    return network, shares


def played(network: FactoredRecurrentActorCritic, seeds: range, deterministic: bool = False) -> list[Episode]:
    fleet: Any = Recall()
    return rollout.run_wave(fleet, network, seeds, rollout.Provenance(0, 0, 1, run_seed=0), deterministic)


def share_right(episodes: Sequence[Episode]) -> float:
    return float(np.mean([e.undiscounted_return > 0 for e in episodes]))


def share_recalled(core: str, critic: str) -> float:
    """Of the greedy policy after training, on both bits equally often."""
    return share_right(played(trained(core, critic)[0], range(64), deterministic=True))


@pytest.mark.parametrize(
    ("core", "critic"), [pytest.param("lstm", "v", marks=pytest.mark.long), ("lstm", "q_op"), ("lstm+memory", "v")]
)
def test_a_recurrent_core_learns_to_recall(core: str, critic: str) -> None:
    assert share_recalled(core, critic) > 0.95


@pytest.mark.long
def test_without_recurrence_it_stays_at_chance() -> None:
    assert share_recalled("feedforward", "v") <= 0.55


def forgotten() -> int:
    """How many updates of 16 runs have less than 0.9 right after they once had 0.97."""
    count = 0
    for seed in range(16):
        shares = trained("lstm", "v", seed, updates=60)[1]
        first = next(k for k, share in enumerate(shares) if share >= 0.97)
        count += sum(share < 0.9 for share in shares[first:])
    return count


@pytest.mark.long
def test_what_was_learnt_is_seldom_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the same runs with full steps in every update."""
    seldom = forgotten()
    monkeypatch.setattr("learner.ppo.update.step_scale", lambda *_: 1.0)
    assert seldom < 0.5 * forgotten()
