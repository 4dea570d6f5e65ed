"""Rewards sum to J, computed here from unseen rows, parameters of tensors and FLOPs that PyTorch counts; episodes end
at the time limit or by a panic, which never pays."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from actors.blueprints.family import blueprint_index
from actors.config import EnvConfig
from actors.env.episode.governor import Governor
from actors.env.seed_fleet import SeedTrainingFleet
from actors.policy.baselines import NeverGrow
from actors.rollout.wave import Provenance, run_wave
from actors.slots.stage import Stage
from actors.types.actions import Op
from actors.types.episode import EndReason
from tests.support.env.model_counter import ModelCounter
from tests.support.env.reference_env import ReferenceEnv
from tests.support.env.walks import TINY, WAIT, Action, act, grow, random_legal, tiny_reference

COLUMN, HALF, DOUBLE = 3, blueprint_index("column_half"), blueprint_index("column_double")
REPLACE = [*grow(COLUMN, DOUBLE, 0), act(Op.SET_ALPHA_TARGET, COLUMN, target=2), act(Op.FOSSILIZE, COLUMN)]
SCRIPTS: dict[str, list[Action]] = {
    "random": [],
    "replaced": [*grow(1, 3, blend=2), *REPLACE],
    "replaced by less": [*grow(4, HALF), act(Op.FOSSILIZE, 4)],
    "pruned": [*REPLACE[:3], WAIT, act(Op.PRUNE, COLUMN)],
}
"""How episodes begin; they go on at random."""


def accuracy(env: ReferenceEnv, host: list[torch.Tensor], fossils: bool = False) -> float:
    """Return the accuracy of these host parameters, with fossilized or with all blended seeds, on the validation rows
    that the policy does not see."""
    net = copy.deepcopy(env.network)
    for tensor, value in zip(net.group.tensors, host, strict=True):
        tensor.data.copy_(value)
    stages = (Stage.FOSSILIZED,) if fossils else (Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)
    slots = sorted((slot.joined, s) for s, slot in enumerate(env.episode.lifecycle.slots) if slot.stage in stages)
    on = {s: env.episode.lifecycle.slots[s].alpha for _, s in slots}
    val, seen = env.episode.task.val, {row.tobytes() for row in env.episode.observed.x}
    unseen = [row.tobytes() not in seen for row in val.x]
    x, y = torch.from_numpy(val.x[unseen]), torch.from_numpy(val.y[unseen])
    with torch.no_grad():
        right = type(net).logits(net, x, on).argmax(-1) == y
    return 100.0 * int(right.sum()) / len(right)


def host_copy(env: ReferenceEnv) -> list[torch.Tensor]:
    return [t.detach().clone() for t in env.network.group.tensors]


@dataclass
class Played:
    env: ReferenceEnv
    counter: ModelCounter
    untrained: float
    final: float = 0.0
    rewards: list[float] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def return_(self) -> float:
        return sum(self.rewards)

    def objective(self) -> float:
        """J by its definition. A panic costs 5 points, and what is left of the model trains on at its own cost."""
        panic, prices = self.info["end_reason"] is EndReason.GOVERNOR, self.env.episode.prices
        size, each = self.counter.doublings(), self.counter.epoch_of_the_model() if panic else None
        effort = self.counter.compute_doublings(each)
        return self.final - self.untrained - prices.doubling * size - prices.compute_doubling * effort - 5.0 * panic


def play(env: ReferenceEnv, seed: int, poison: int = -1, how: str = "nan", script: Sequence[Action] = ()) -> Played:
    """Play a legal episode, random after the script; set the host's parameters to NaN before epoch `poison`, or the
    last one."""
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    played = Played(env, ModelCounter(env), accuracy(env, host_copy(env)))
    ended = False
    while not ended:
        epoch, good = len(played.rewards), host_copy(env)
        if epoch == min(poison, env.episode.horizon_epochs - 1):
            if how == "nan":
                env.network.group.params["0.w"].data[0, 0] = float("nan")
            else:
                env.network.group.lr_scale = 2e6
        action = script[epoch] if epoch < len(script) else random_legal(rng, env)
        _, reward, ended, truncated, played.info = env.step(action)
        assert not truncated
        assert "illegal_action" not in played.info
        played.counter.end_epoch()
        played.rewards.append(float(reward))
    panic = played.info["end_reason"] is EndReason.GOVERNOR
    played.final = accuracy(env, good if panic else host_copy(env), fossils=panic)
    return played


PRICES = {"points_per_doubling": 7.0, "points_per_compute_doubling": 3.0}


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.long) for s in (1, 2))])
@pytest.mark.parametrize("poison", [-1, 3, 99])
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_undiscounted_return_is_j(seed: int, poison: int, script: str) -> None:
    """At any prices, horizon and width of the host."""
    ranges = {"horizon_epochs": (9, 14), "host_width": (2, 12)} | dict.fromkeys(PRICES, (1.0, 8.0))
    played = play(tiny_reference(tasks=("spirals", "wine"), **ranges), seed, poison, script=SCRIPTS[script])
    horizon = played.env.episode.horizon_epochs
    assert played.return_ == pytest.approx(played.objective(), abs=1e-6)
    panic = played.info["end_reason"] is EndReason.GOVERNOR
    assert panic or poison < 0  # a column that replaces its host too early may also cause one
    assert len(played.rewards) <= min(poison + 1, horizon) if poison >= 0 else panic or len(played.rewards) == horizon
    told = played.info["telemetry"]
    assert told["final_accuracy"] == pytest.approx(played.final)
    assert told["objective"] == pytest.approx(played.return_)
    assert told["doublings"] == pytest.approx(played.counter.doublings())
    if not panic:
        assert told["compute_doublings"] == pytest.approx(played.counter.compute_doublings())


@pytest.mark.parametrize("task", ["signals", "digits_image"])
def test_the_flops_of_convolutions_count_as_pytorch_counts_them(task: str) -> None:
    played = play(tiny_reference(tasks=(task,), horizon_epochs=6, **PRICES), 1, script=REPLACE[:3])
    assert played.info["telemetry"]["compute_doublings"] == pytest.approx(played.counter.compute_doublings())


@pytest.mark.parametrize(("how", "epoch"), [("nan", 0), ("lr", 7), ("nan", 11)])
def test_a_panic_restores_prunes_and_ends(how: str, epoch: int) -> None:
    env = tiny_reference()
    played = play(env, 4, epoch, how)
    assert len(played.rewards) == epoch + 1  # also in the last epoch
    assert played.info["end_reason"] is EndReason.GOVERNOR
    assert played.info["telemetry"]["panic"] == 1.0
    assert not env.network.group.optimizer.state
    assert all(t.isfinite().all() for t in env.network.group.tensors)
    slots = env.episode.lifecycle.slots
    left = {s for s, slot in enumerate(slots) if slot.active}
    assert left == set(env.network.seeds) == {s for s, slot in enumerate(slots) if slot.stage is Stage.FOSSILIZED}


HEALTHY = [(2.3 - 0.2 * i, 10.0 + 8 * i) for i in range(4)]


@pytest.mark.parametrize(
    ("epochs", "untrained_loss", "panics"),
    [
        *(([*HEALTHY, (loss, 40.0)], 2.4, loss != 3.0) for loss in (np.nan, np.inf, 20.0, 3.0)),
        ([(2.3, 26.0), (2.0, 11.0)], 2.4, True),  # 16 points above chance, then chance
        ([(2.3, 24.0), (2.0, 11.0)], 2.4, False),  # it was never 15 points above chance
        ([(10.0, 10.0)], 2.4, False),
        ([(30.0, 10.0)], 2.4, True),
        ([(30.0, 10.0)], 30.0, False),  # a host that starts badly may stay bad
        ([(30.0, 10.0)], np.nan, False),  # nothing to compare with
    ],
)
def test_what_makes_the_governor_panic(epochs: list[tuple[float, float]], untrained_loss: float, panics: bool) -> None:
    """Ten classes; validation loss and accuracy of each epoch, of which only the last may be a reason."""
    watch = Governor(10, untrained_loss)
    found = [bool(watch.check(loss, loss, points)) for loss, points in epochs]
    assert found == [False] * (len(epochs) - 1) + [panics]


@pytest.mark.parametrize("time_limit", ["terminated", "truncated"])
def test_a_drawn_horizon_ends_an_episode_and_is_shown_or_hidden(time_limit: str) -> None:
    fleet = SeedTrainingFleet(EnvConfig(**TINY | {"horizon_epochs": (3, 6), "time_limit": time_limit}), 24, 0)
    episodes = run_wave(fleet, NeverGrow(fleet.spaces), range(24), Provenance(0, 0, 8, 0))
    assert {len(e) for e in episodes} == {3, 4, 5, 6}
    for e in episodes:
        assert (e.terminated, e.truncated) == (time_limit == "terminated", time_limit == "truncated")
        assert e.end_reason is EndReason.HORIZON
        assert e.obs[:, 0].any() == e.terminated


def test_a_panic_on_the_last_epoch_terminates_even_with_a_truncated_limit() -> None:
    env = tiny_reference(horizon_epochs=4, time_limit="truncated")
    for poisoned in (False, True):
        env.reset(seed=0)
        for _ in range(3):
            env.step(WAIT)
        if poisoned:
            env.network.group.params["in.w"].data.fill_(float("nan"))
        _, reward, terminated, truncated, info = env.step(WAIT)
        assert (terminated, truncated) == (poisoned, not poisoned)
        assert info["end_reason"] is (EndReason.GOVERNOR if poisoned else EndReason.HORIZON)
    assert float(reward) == pytest.approx(-5.0)  # nothing grew, so there is only the penalty
