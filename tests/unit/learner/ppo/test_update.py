"""The update as a whole: what it measures, when it stops, what it skips, and when statistics move."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.normalizer import ObservationNormalizer
from tests.support.learning.batches import evaluate_batch, toy_batch, toy_ppo
from tests.support.learning.toy import toy_network

RESCALED = ("critic.2.weight", "critic.2.bias")  # PopArt moves these, whether or not a step is taken


def parameters(network: FactoredRecurrentActorCritic) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in network.named_parameters() if name not in RESCALED}


def unchanged(before: dict[str, Tensor], network: FactoredRecurrentActorCritic) -> bool:
    return all(torch.equal(t, parameters(network)[name]) for name, t in before.items())


def test_a_policy_that_is_not_the_actors_shows_in_the_ratio_error_only_for_fresh_steps() -> None:
    network = toy_network()
    with torch.no_grad():
        network.heads.op[2].bias.add_(torch.tensor([0.5, 0.0, -0.5]))
    fresh, lagged = (toy_ppo(network=copy.deepcopy(network))(toy_batch(), update=0, version=v) for v in (0, 3))
    assert fresh["ratio_error"] > 1e-2
    assert "ratio_error" not in lagged  # of older weights: a lag, and nothing to compare
    assert lagged["lag_kl"] == fresh["lag_kl"] > 1e-4


def test_the_kl_stop_comes_before_the_step_that_would_go_further() -> None:
    """A tiny target lets the first step pass, at KL 0, and no other: the weights are those of one step."""
    one, many = toy_ppo(update_epochs=1), toy_ppo(update_epochs=4, target_kl=1e-6)
    one(toy_batch(), update=0, version=0)
    metrics = many(toy_batch(), update=0, version=0)
    assert metrics["update_epochs_done"] == 1.0
    assert metrics["kl"] > 1e-6
    assert unchanged(parameters(one.network), many.network)
    assert all(state["step"] == 1 for state in many.optimizer.state.values())


def test_the_kl_stop_is_at_one_and_a_half_times_its_target() -> None:
    """The second pass checks the KL of one step: with all steps in one minibatch, it is the KL of an update of one."""
    kl = toy_ppo(update_epochs=1, target_kl=None)(toy_batch(), update=0, version=0)["kl"]
    for target_kl, passes in ((0.97 * kl / 1.5, 1.0), (1.03 * kl / 1.5, 2.0), (None, 2.0)):
        metrics = toy_ppo(update_epochs=2, target_kl=target_kl)(toy_batch(), update=0, version=0)
        assert metrics.get("kl_limit") == (None if target_kl is None else pytest.approx(1.5 * target_kl))
        assert (metrics["update_epochs_done"], metrics["kl_stop"]) == (passes, float(passes == 1.0))


def moved_by(before: FactoredRecurrentActorCritic, after: FactoredRecurrentActorCritic) -> float:
    """k3 of `after` to `before` over all unforced steps."""
    b = toy_batch()
    old, new = (evaluate_batch(network, b).log_probs.sum(-1) for network in (before, after))
    changes = (new - old)[~b.forced].numpy()
    return float(np.mean(np.exp(changes) - 1.0 - changes))


@pytest.mark.parametrize(
    "changes",
    [{}, {"update_epochs": 3, "minibatches": 2}, {"update_epochs": 3, "target_kl": 1e-6}],
    ids=["one step", "several", "stopped"],
)
def test_kl_is_how_far_the_update_moved_the_policy(changes: dict[str, Any]) -> None:
    """With one pass and one minibatch too, the default: every check of the KL stop then comes before the step."""
    ppo, before = toy_ppo(lr=3e-2, **{"update_epochs": 1, **changes}), toy_network()
    kl = ppo(toy_batch(), update=0, version=0)["kl"]
    # The observation statistics, which move after the last step, are no part of it.
    statistics = {name: t for name, t in before.encoder.state_dict().items() if "normalizer" in name}
    ppo.network.encoder.load_state_dict(statistics, strict=False)
    with torch.no_grad():
        assert kl == pytest.approx(moved_by(before, ppo.network), rel=1e-3)
    assert kl > 1e-3


def test_a_step_with_gradients_that_are_not_finite_is_skipped_and_counted() -> None:
    ppo = toy_ppo(update_epochs=2, minibatches=2)
    before, calls = parameters(ppo.network), iter(range(100))

    def spoil(grad: Tensor) -> Tensor:
        return grad * torch.inf if next(calls) < 3 else grad

    ppo.network.core.lstm.weight_hh_l1.register_hook(spoil)
    metrics = ppo(toy_batch(), update=0, version=0)
    assert metrics["skipped_steps"] == 3.0
    assert metrics["update_epochs_done"] == 2.0
    assert not unchanged(before, ppo.network)
    assert all(bool(t.isfinite().all()) for t in ppo.network.state_dict().values())
    assert all(state["step"] == 1 for state in ppo.optimizer.state.values())
    assert all(value == value for value in metrics.values())


def test_forced_steps_are_out_of_the_policy_terms_and_in_the_value_loss() -> None:
    b = toy_batch()
    assert 0 < int(b.forced.sum()) < b.size
    all_forced = b._replace(forced=torch.ones_like(b.forced))
    metrics = toy_ppo()(all_forced, update=0, version=0)
    assert metrics["forced_fraction"] == 1.0
    assert metrics["loss_policy"] == metrics["grad_norm_heads"] == metrics["kl"] == 0.0
    assert "ratio_error" not in metrics
    assert metrics["loss_value"] > 0.0
    assert metrics["grad_norm_critic"] > 0.0


def test_the_kl_that_stops_is_to_the_proximal_policy_and_not_to_the_behaviour_policy() -> None:
    """Behind the present weights by a lag, the first check still reads 0: only this batch's steps count."""
    b = toy_batch()
    lagged = b._replace(log_probs=b.log_probs - 0.5)
    metrics = toy_ppo(target_kl=1e-6)(lagged, update=0, version=4)
    assert metrics["lag_kl"] > 1e-2
    assert metrics["update_epochs_done"] == 1.0


def test_observation_statistics_move_after_the_update_and_count_valid_steps() -> None:
    """In the middle of it, acting and learning would normalize differently."""
    b, ppo = toy_batch(), toy_ppo()
    expected: Any = toy_network().encoder
    base, slots = expected.split(b.obs)
    for normalizer, rows in ((expected.base_normalizer, base), (expected.slot_normalizer, slots.flatten(0, 1))):
        count = float(normalizer.count)
        normalizer.update(rows)
        assert float(normalizer.count) == count + len(rows)
    metrics = ppo(b, update=0, version=0)
    assert metrics["ratio_error"] < 1e-5
    for name, moved in ppo.network.encoder.named_buffers():
        assert torch.equal(moved, expected.get_buffer(name)), name


def test_normalizer_statistics_are_those_of_all_rows_ever_seen() -> None:
    torch.manual_seed(0)
    rows = [5.0 + 3.0 * torch.randn(n, 4) for n in (1, 30, 7)]
    normalizer = ObservationNormalizer(4)
    for part in rows:
        normalizer.update(part)
    everything = torch.cat(rows).double()
    assert torch.allclose(normalizer.mean, everything.mean(0), atol=1e-12)
    assert torch.allclose(normalizer.variance, everything.var(0, unbiased=False), atol=1e-10)
    expected = ((everything - everything.mean(0)) / (everything.var(0, unbiased=False) + 1e-4).sqrt()).clamp(-5, 5)
    assert torch.allclose(normalizer(everything.float()), expected.float(), atol=1e-6)
    assert float(normalizer(torch.full((1, 4), 1e9)).max()) == 5.0


def test_a_stop_that_is_not_read_leaves_the_same_weights_as_one_that_is() -> None:
    """On a device the passes after the stop run and change nothing; `device_learning` shows that nothing is read."""
    read, gated = (toy_ppo(1e-3, target_kl=1e-6, update_epochs=4, minibatches=3) for _ in range(2))
    read.reads_flags, gated.reads_flags = True, False
    ours, theirs = (ppo(toy_batch(), update=0, version=0) for ppo in (read, gated))
    assert 0.0 < ours["update_epochs_done"] == theirs["update_epochs_done"] < 4.0
    assert all(map(torch.equal, read.network.parameters(), gated.network.parameters()))
    for name in ("loss_policy", "loss_value", "ratio_max", "skipped_steps"):
        assert ours[name] == theirs[name]
