"""Rewards sum to J, computed here from accuracies and parameter counts only; a panic is charged and never pays."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from actors.env.episode import governor, host_episode
from actors.env.episode.governor import Governor
from actors.slots.stage import Stage
from actors.types.actions import Op
from actors.types.episode import EndReason
from tests.support.env.reference_env import ReferenceEnv
from tests.support.env.walks import WAIT, act, random_legal, tiny_reference


def accuracy(env: ReferenceEnv, host: list[torch.Tensor], fossils: bool = False) -> float:
    """Return the validation accuracy of these host parameters, with fossilized or with all blended seeds."""
    net = copy.deepcopy(env.network)
    for tensor, value in zip(net.group.tensors, host, strict=True):
        tensor.data.copy_(value)
    stages = (Stage.FOSSILIZED,) if fossils else (Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)
    on = {s: slot.alpha for s, slot in enumerate(env.episode.lifecycle.slots) if slot.stage in stages}
    with torch.no_grad():
        right = net.logits(env.val_x, on).argmax(-1) == env.val_y
    return 100.0 * int(right.sum()) / len(right)


def host_copy(env: ReferenceEnv) -> list[torch.Tensor]:
    return [t.detach().clone() for t in env.network.group.tensors]


@dataclass
class Played:
    env: ReferenceEnv
    untrained: float
    final: float = 0.0
    rents: list[float] = field(default_factory=list)  # one per played epoch
    rewards: list[float] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)
    terminated: bool = False
    truncated: bool = False

    @property
    def return_(self) -> float:
        return sum(self.rewards)

    def objective(self) -> float:
        """J by its definition; a panic costs 5 points, and the last rent for every epoch that was not played."""
        left = self.env.episode.horizon_epochs - len(self.rents)
        panic = self.info["end_reason"] is EndReason.GOVERNOR
        rents = self.rents + [self.rents[-1]] * left
        return self.final - self.untrained - self.env.episode.rent_weight * float(np.mean(rents)) - 5.0 * panic


def play(env: ReferenceEnv, seed: int, poison: int = -1, how: str = "nan", grow: bool = True) -> Played:
    """Play a random legal episode; set the host's parameters to NaN before epoch `poison`."""
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    played = Played(env, accuracy(env, host_copy(env)))
    host = sum(t.numel() for t in env.network.group.tensors)
    honest = env.network.train_epoch

    def train_epoch(*args: Any) -> Any:
        grown = [t for seed in env.network.seeds.values() for t in seed.group.tensors]
        played.rents.append(float(np.log2(1 + sum(t.numel() for t in grown) / host)))
        return honest(*args)

    env.network.train_epoch = train_epoch  # type: ignore[method-assign]
    while not played.terminated:
        epoch, good = len(played.rewards), host_copy(env)
        if epoch == poison:
            if how == "nan":
                env.network.group.params["0.w"].data[0, 0] = float("nan")
            else:
                env.network.group.optimizer.param_groups[0]["lr"] = 1e4
        action = random_legal(rng, env) if grow else WAIT
        _, reward, played.terminated, played.truncated, played.info = env.step(action)
        played.rewards.append(float(reward))
    panic = played.info["end_reason"] is EndReason.GOVERNOR
    played.final = accuracy(env, good if panic else host_copy(env), fossils=panic)
    return played


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("poison", [-1, 3, 11])
@pytest.mark.parametrize("task", ["spirals", "wine"])
def test_the_undiscounted_return_is_j(seed: int, poison: int, task: str) -> None:
    played = play(tiny_reference(tasks=(task,), rent_weight=7.0), seed, poison)
    assert played.return_ == pytest.approx(played.objective(), abs=1e-6)
    assert (played.terminated, played.truncated) == (True, False)
    assert played.info["end_reason"] is (EndReason.HORIZON if poison < 0 else EndReason.GOVERNOR)
    assert len(played.rewards) == (12 if poison < 0 else poison + 1)
    assert played.info["telemetry"]["final_accuracy"] == pytest.approx(played.final)


@pytest.mark.parametrize("wrong", ["rent of the rest", "fine"])
def test_a_wrong_panic_penalty_is_detected(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    def cheap(rent_weight: float, last_rent: float, epochs_left: int, horizon: int) -> float:
        return 5.0 if wrong == "rent of the rest" else rent_weight * last_rent * epochs_left / horizon

    monkeypatch.setattr(governor, "penalty", cheap)
    played = [play(tiny_reference(), seed, 6) for seed in range(3)]
    assert any(abs(p.return_ - p.objective()) > 0.1 for p in played)


def test_rent_charged_before_training_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = host_episode.objective_reward
    monkeypatch.setattr(host_episode, "objective_reward", lambda a, b, rent, *rest: honest(a, b, 0.9 * rent, *rest))
    played = play(tiny_reference(), 1)
    assert abs(played.return_ - played.objective()) > 1e-3


@pytest.mark.parametrize("how", ["nan", "lr"])
@pytest.mark.parametrize("epoch", [0, 1, 7, 11])
def test_a_panic_restores_prunes_and_ends(how: str, epoch: int) -> None:
    env = tiny_reference()
    played = play(env, 4, epoch, how)
    assert len(played.rewards) == epoch + 1  # also in the last epoch
    assert played.info["end_reason"] is EndReason.GOVERNOR
    assert played.rewards[-1] <= -5.0 + (played.final - env.episode.timeline.accuracy[-2])
    assert played.info["telemetry"]["panic"] == 1.0
    assert not env.network.group.optimizer.state
    assert all(t.isfinite().all() for t in env.network.group.tensors)
    live = {"GERMINATED", "TRAINING", "BLENDING", "HOLDING"}
    assert not live & {lane[-1] for lane in env.episode.timeline.stages}
    assert set(env.network.seeds) == {
        s for s, x in enumerate(env.episode.lifecycle.slots) if x.stage is Stage.FOSSILIZED
    }


def test_a_fossilized_seed_survives_a_panic() -> None:
    env = tiny_reference(horizon_epochs=25)
    env.reset(seed=1)
    for action in (act(Op.GERMINATE, 2, 3), act(Op.ADVANCE, 2), act(Op.ADVANCE, 2), act(Op.FOSSILIZE, 2), WAIT):
        env.step(action)
    kept = [t.detach().clone() for t in env.network.seeds[2].group.tensors]
    env.network.group.params["in.w"].data.fill_(float("nan"))
    *_, terminated, _, info = env.step(WAIT)
    assert terminated
    assert env.episode.lifecycle.slots[2].stage is Stage.FOSSILIZED
    assert all(torch.equal(a, b) for a, b in zip(kept, env.network.seeds[2].group.tensors, strict=True))
    assert info["telemetry"]["final_accuracy"] == env.episode.timeline.accuracy[-2]


def gains_from_panics() -> list[float]:
    """Return J of episodes that the governor ends minus J of WAIT with the same seed, for many plans and epochs."""
    settings = {"inner_steps": 8, "tasks": ("spirals", "wine", "clusters_noisy")}
    gains = []
    for seed in range(2):
        wait = play(tiny_reference(**settings), seed, grow=False).return_
        gains += [
            play(tiny_reference(**settings), seed, k, grow=g).return_ - wait for k in (0, 4, 11) for g in (True, False)
        ]
    return gains


def test_a_panic_never_beats_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max(gains_from_panics()) < 0
    monkeypatch.setattr(governor, "penalty", lambda *args: 0.0)
    assert max(gains_from_panics()) >= 0  # without the penalty a panic would sometimes pay


def test_what_makes_the_governor_panic() -> None:
    def first_panic(epochs: list[tuple[float, float]]) -> int:
        """Return the epoch, of (validation loss, accuracy) each, at which a governor for ten classes panics, or -1."""
        watch = Governor(10, float(np.log(10)))
        watch.begin(2.4)
        for i, (loss, points) in enumerate(epochs):
            if watch.check(loss, loss, points):
                return i
        return -1

    healthy = [(2.3 - 0.2 * i, 10.0 + 8 * i) for i in range(9)]
    assert first_panic(healthy) == -1
    assert first_panic([*healthy[:4], (float("nan"), 40.0)]) == 4
    assert first_panic([*healthy[:4], (float("inf"), 40.0)]) == 4
    assert first_panic([*healthy[:4], (20.0, 40.0)]) == 4
    assert first_panic([*healthy[:4], (3.0, 40.0)]) == -1
    assert first_panic([(2.3, 26.0), (2.0, 11.0)]) == 1  # 16 points above chance, then chance
    assert first_panic([(2.3, 24.0), (2.0, 11.0)]) == -1  # it was never 15 points above chance


def test_the_first_epoch_is_compared_with_the_untrained_host() -> None:
    def panics(untrained_loss: float, loss: float) -> bool:
        watch = Governor(10, float(np.log(10)))
        watch.begin(untrained_loss)
        return watch.check(loss, loss, 10.0) is not None

    assert panics(2.4, 30.0)
    assert not panics(2.4, 10.0)
    assert not panics(30.0, 30.0)  # a host that starts badly may stay bad
    assert not panics(float("nan"), 30.0)  # nothing to compare with
