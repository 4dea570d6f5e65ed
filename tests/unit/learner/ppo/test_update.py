"""The update as a whole: what it measures, when it stops, what it skips, and how minibatches add up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from actors.policy.network import FactoredRecurrentActorCritic
from learner.config import LearnerConfig
from learner.ppo import update as update_module
from learner.ppo.batch import Batch, make_batch
from learner.ppo.objective import make_denominators, objective
from learner.ppo.optimizer import make_optimizer
from learner.ppo.update import PPOUpdate
from tests.support.learning.batches import evaluate_batch
from tests.support.learning.toy import SPACES, toy_network, toy_seed, toy_wave

LENGTHS = (5, 2, 9, 4, 7, 1, 3, 8)
RESCALED = ("critic.2.weight", "critic.2.bias")  # PopArt moves these, whether or not a step is taken


def batch(network: FactoredRecurrentActorCritic | None = None) -> Batch:
    seeds = [toy_seed(n, truncated=i % 2 == 0, salt=i) for i, n in enumerate(LENGTHS)]
    return make_batch(toy_wave(network or toy_network(), seeds), SPACES)


def make(lr: float = 1e-2, **changes: Any) -> PPOUpdate:
    fields: dict[str, Any] = {"state_stride": 1, "gamma": 0.95, "target_kl": 10.0}
    config = LearnerConfig(**(fields | changes))
    network = toy_network()
    return PPOUpdate(network, make_optimizer(network, lr, 0.0), config, seed=1)


def parameters(network: FactoredRecurrentActorCritic) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in network.named_parameters() if name not in RESCALED}


def unchanged(before: dict[str, Tensor], network: FactoredRecurrentActorCritic) -> bool:
    return all(torch.equal(t, parameters(network)[name]) for name, t in before.items())


def test_at_lag_0_acting_and_learning_agree() -> None:
    metrics = make()(batch(), update=0, version=0)
    assert metrics["ratio_error"] < 1e-5
    assert metrics["lag_kl"] < 1e-9
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)


def test_a_policy_that_is_not_the_actors_shows_in_the_ratio_error_only_for_fresh_steps() -> None:
    ppo = make()
    with torch.no_grad():
        ppo.network.heads.op[2].bias.add_(torch.tensor([0.5, 0.0, -0.5]))
    stale = make()
    stale.network.load_state_dict(ppo.network.state_dict())
    fresh, lagged = ppo(batch(), update=0, version=0), stale(batch(), update=0, version=3)
    assert fresh["ratio_error"] > 1e-2
    assert "ratio_error" not in lagged  # of older weights: a lag, and nothing to compare
    assert lagged["lag_kl"] == fresh["lag_kl"] > 1e-4


def test_ratios_are_against_the_behaviour_policy_that_was_shipped() -> None:
    """Recomputed old log-probs, the trap, would make this 1 whatever the episodes say."""
    b = batch()
    metrics = make()(b._replace(log_probs=b.log_probs - 0.1), update=0, version=0)
    assert metrics["ratio_mean"] > 1.05


def test_the_kl_stop_is_a_gate_that_no_weight_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit below every KL not a single step is taken; without one they are."""
    free = make(update_epochs=3, minibatches=2)
    before = parameters(free.network)
    assert free(batch(), update=0, version=0)["update_epochs_done"] == pytest.approx(3.0)
    assert not unchanged(before, free.network)
    monkeypatch.setattr(update_module, "KL_STOP", -1.0)
    stopped = make(update_epochs=3, minibatches=2)
    metrics = stopped(batch(), update=0, version=0)
    assert unchanged(before, stopped.network)
    assert metrics["update_epochs_done"] == 0.0
    assert metrics["skipped_steps"] == 0.0
    assert all(state["step"] == 0 for state in stopped.optimizer.state.values())


def test_the_kl_stop_comes_before_the_step_that_would_go_further() -> None:
    """A tiny target lets the first step pass, at KL 0, and no other: the weights are those of one step."""
    one, many = make(update_epochs=1), make(update_epochs=4, target_kl=1e-6)
    one(batch(), update=0, version=0)
    metrics = many(batch(), update=0, version=0)
    assert metrics["update_epochs_done"] == 1.0
    assert metrics["kl"] > 1e-6
    assert unchanged(parameters(one.network), many.network)


def test_the_kl_stop_is_at_one_and_a_half_times_its_target() -> None:
    """The second pass checks the KL of one step: with all steps in one minibatch, it is the KL of an update of one."""
    kl = make(update_epochs=1, target_kl=None)(batch(), update=0, version=0)["kl"]

    def passes(target_kl: float | None) -> tuple[float, float]:
        metrics = make(update_epochs=2, target_kl=target_kl)(batch(), update=0, version=0)
        assert metrics.get("kl_limit") == (None if target_kl is None else pytest.approx(1.5 * target_kl))
        return metrics["update_epochs_done"], metrics["kl_stop"]

    assert passes(0.97 * kl / 1.5) == (1.0, 1.0)
    assert passes(1.03 * kl / 1.5) == (2.0, 0.0)
    assert passes(None) == (2.0, 0.0)


def test_values_in_force_are_metrics() -> None:
    metrics = make(lr=3e-4, entropy_start=0.02, entropy_end=0.02)(batch(), update=0, version=0)
    assert (metrics["lr"], metrics["entropy_coef"]) == (3e-4, 0.02)


def moved_by(before: FactoredRecurrentActorCritic, after: FactoredRecurrentActorCritic) -> float:
    """k3 of `after` to `before` over all unforced steps, episode by episode and step by step."""
    b = batch()
    old, new = (evaluate_batch(network, b).log_probs.sum(-1).tolist() for network in (before, after))
    forced = b.forced.tolist()
    changes = [n - o for o, n, out in zip(old, new, forced, strict=True) if not out]
    return float(np.mean([np.exp(change) - 1.0 - change for change in changes]))


@pytest.mark.parametrize(
    "changes",
    [{}, {"update_epochs": 3, "minibatches": 2}, {"update_epochs": 3, "target_kl": 1e-6}],
    ids=["one step", "several", "stopped"],
)
def test_kl_is_how_far_the_update_moved_the_policy(changes: dict[str, Any]) -> None:
    """With one pass and one minibatch too, the default: every check of the KL stop then comes before the step."""
    ppo, before = make(lr=3e-2, **{"update_epochs": 1, **changes}), toy_network()
    kl = ppo(batch(), update=0, version=0)["kl"]
    with torch.no_grad():  # the observation statistics, which move after the last step, are no part of it
        for name, tensor in ppo.network.state_dict().items():
            if "normalizer" in name and not name.startswith("value"):
                tensor.copy_(before.state_dict()[name])
        assert kl == pytest.approx(moved_by(before, ppo.network), rel=1e-3)
    assert kl > 1e-3


def test_a_step_with_gradients_that_are_not_finite_is_skipped_and_counted() -> None:
    ppo = make(update_epochs=2, minibatches=2)
    before, calls = parameters(ppo.network), iter(range(100))

    def spoil(grad: Tensor) -> Tensor:
        return grad * torch.inf if next(calls) < 3 else grad

    ppo.network.lstm.weight_hh_l1.register_hook(spoil)
    metrics = ppo(batch(), update=0, version=0)
    assert metrics["skipped_steps"] == 3.0
    assert metrics["update_epochs_done"] == 2.0
    assert not unchanged(before, ppo.network)
    assert all(bool(t.isfinite().all()) for t in ppo.network.state_dict().values())
    assert all(state["step"] == 1 for state in ppo.optimizer.state.values())
    assert all(value == value for value in metrics.values())


def test_all_steps_skipped_leave_weights_and_moments_alone() -> None:
    ppo = make(update_epochs=2)
    before = parameters(ppo.network)
    ppo.network.norm.bias.register_hook(lambda grad: grad * torch.nan)
    assert ppo(batch(), update=0, version=0)["skipped_steps"] == 2.0
    assert unchanged(before, ppo.network)


class Recorded(torch.optim.SGD):
    """Keeps each step's gradients and takes none, so that minibatches meet the same weights."""

    def __init__(self, network: FactoredRecurrentActorCritic) -> None:
        groups = [{"params": list(network.parameters()), "name": "all"}]
        super().__init__(groups, lr=0.0)
        self.seen: list[list[Tensor]] = []

    def step(self, closure: Any = None) -> None:
        own = [p.grad for group in self.param_groups for p in group["params"]]
        self.seen.append([torch.zeros(1) if g is None else g.clone() for g in own])


def gradients(minibatches: int, **changes: Any) -> list[list[Tensor]]:
    ppo = make(minibatches=minibatches, grad_clip=1e9, **changes)
    recorder = Recorded(ppo.network)
    ppo.optimizer = recorder
    ppo(batch(), update=0, version=0)
    return recorder.seen


def check_minibatches_add_up() -> None:
    whole, parts = gradients(1), gradients(4)
    assert (len(whole), len(parts)) == (1, 4)
    for k, full in enumerate(whole[0]):
        mean = torch.stack([part[k] for part in parts]).mean(0)
        assert torch.allclose(mean, full, atol=1e-5 * max(1.0, float(full.abs().max())))


def test_four_minibatches_average_to_the_gradient_of_the_whole_batch() -> None:
    check_minibatches_add_up()


def test_a_denominator_of_the_minibatchs_own_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dividing by the steps of the minibatch would weight short episodes more."""

    def own(out: Any, t: Any, config: LearnerConfig, coef: float, denominators: Any, continuous: int) -> Any:
        return objective(out, t, config, coef, make_denominators(t, config, 1), continuous)

    monkeypatch.setattr(update_module, "objective", own)
    with pytest.raises(AssertionError):
        check_minibatches_add_up()


def test_minibatches_hold_whole_episodes_each_once_in_an_order_of_seed_and_update() -> None:
    def orders(update: int) -> list[list[int]]:
        ppo = make(minibatches=4, update_epochs=2)
        seen: list[list[int]] = []
        evaluate = ppo.network.evaluate_steps

        def watch(steps: Any) -> Any:
            places = [
                b.place if b.place is not None else torch.arange(b.steps * len(b.rows))
                for b in steps.layout.buckets.buckets
            ]
            rows = [torch.bincount(p % len(b.rows)) for p, b in zip(places, steps.layout.buckets.buckets, strict=True)]
            seen.append(torch.cat(rows).tolist())
            return evaluate(steps)

        ppo.network.evaluate_steps = watch  # type: ignore[method-assign]
        ppo(batch(), update=update, version=0)
        return seen[1:-1]  # the first pass is the proximal one, the last measures how far the policy has moved

    first = orders(0)
    assert len(first) == 8
    for epoch in (first[:4], first[4:]):
        assert sorted(n for part in epoch for n in part) == sorted(LENGTHS)
    assert first[:4] != first[4:]
    assert orders(0) == first
    assert orders(1) != first


def test_forced_steps_are_out_of_the_policy_terms_and_in_the_value_loss() -> None:
    b = batch()
    assert 0 < int(b.forced.sum()) < b.size
    all_forced = b._replace(forced=torch.ones_like(b.forced))
    metrics = make()(all_forced, update=0, version=0)
    assert metrics["forced_fraction"] == 1.0
    assert metrics["loss_policy"] == metrics["grad_norm_heads"] == metrics["kl"] == 0.0
    assert "ratio_error" not in metrics
    assert metrics["loss_value"] > 0.0
    assert metrics["grad_norm_critic"] > 0.0
