"""The loss of one step against plain loops over steps and heads; and when statistics and targets move."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from actors.policy.distribution import masked_log_probs
from actors.policy.network import Evaluation, FactoredRecurrentActorCritic
from actors.policy.normalizer import ObservationNormalizer
from learner.config import LearnerConfig
from learner.ppo.batch import Batch, make_batch
from learner.ppo.objective import Denominators, objective
from learner.ppo.optimizer import make_optimizer
from learner.ppo.targets import Targets
from learner.ppo.update import PPOUpdate
from tests.support.learning.batches import evaluate_batch, targets_of
from tests.support.learning.toy import SPACES, SPEC, toy_network, toy_seed, toy_wave

STEPS = 30


def make(**changes: Any) -> PPOUpdate:
    fields: dict[str, Any] = {"state_stride": 1, "gamma": 0.9, "target_kl": 10.0, "value_coef": 0.7}
    network = toy_network()
    return PPOUpdate(network, make_optimizer(network, 1e-3, 0.0), LearnerConfig(**(fields | changes)), seed=1)


def batch() -> Batch:
    seeds = [toy_seed(n, truncated=n % 2 == 0, salt=n) for n in (4, 7, 2)]
    return make_batch(toy_wave(toy_network(), seeds), SPACES)


def random_step() -> tuple[Evaluation, Targets]:
    """A learner that has moved away from both the behaviour and the proximal policy."""
    noise = torch.Generator().manual_seed(5)

    def draw(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return scale * torch.randn(shape, generator=noise)

    heads = len(SPEC.heads)
    behaviour = -draw(STEPS, heads).abs()
    unforced = torch.rand(STEPS, generator=noise) < 0.7
    counted = (torch.rand(STEPS, heads, generator=noise) < 0.6) & unforced[:, None]
    targets = Targets(
        advantages=draw(STEPS, heads),
        returns=draw(STEPS),
        proximal_values=draw(STEPS),
        proximal_log_probs=behaviour + draw(STEPS, heads, scale=0.5),
        behaviour_log_probs=behaviour,
        counted=counted,
        unforced=unforced,
    )
    entropies = torch.rand(STEPS, heads, generator=noise)
    log_probs, values = behaviour + draw(STEPS, heads, scale=0.3), draw(STEPS)
    out = Evaluation(log_probs, entropies, values, values, draw(STEPS, 2), torch.zeros(STEPS, 0))
    return out, targets


def by_loops(out: Evaluation, t: Targets, value_coef: float, entropy_coef: float) -> float:
    """Per-head surrogates with ratios to the BEHAVIOUR policy, half squares, minus the bonus for entropy."""
    policy = value = entropy = 0.0
    for n in range(STEPS):
        for k in range(len(SPEC.heads)):
            if t.counted[n, k]:
                ratio = float(np.exp(float(out.log_probs[n, k]) - float(t.behaviour_log_probs[n, k])))
                a = float(t.advantages[n, k])
                policy -= min(ratio * a, min(max(ratio, 0.8), 1.2) * a)
                entropy += float(out.entropies[n, k])
        v, old, target = float(out.values[n]), float(t.proximal_values[n]), float(t.returns[n])
        near = old + min(max(v - old, -0.2), 0.2)
        value += 0.5 * max((v - target) ** 2, (near - target) ** 2)
    unforced = int(t.unforced.sum())
    return policy / unforced + value_coef * value / STEPS - entropy_coef * entropy / unforced


@pytest.mark.parametrize("wrong", [None, "proximal ratios", "entropy as a cost", "forced steps"])
def test_the_loss_is_the_factored_objective(wrong: str | None) -> None:
    ppo = make()
    out, t = random_step()
    expected = by_loops(out, t, value_coef=0.7, entropy_coef=0.3)
    coefficient = -0.3 if wrong == "entropy as a cost" else 0.3
    if wrong == "proximal ratios":
        t = t._replace(behaviour_log_probs=t.proximal_log_probs)
    if wrong == "forced steps":
        t = t._replace(counted=torch.ones_like(t.counted))
    loss = objective(out, t, ppo.config, coefficient, Denominators(t.unforced.sum(), float(STEPS)))
    assert (float(loss.total) == pytest.approx(expected, rel=1e-4)) == (wrong is None)


def test_the_kl_that_stops_is_to_the_proximal_policy_and_not_to_the_behaviour_policy() -> None:
    """Behind the present weights by a lag, the first check still reads 0: only this batch's steps count."""
    b = batch()
    lagged = b._replace(log_probs=b.log_probs - 0.5)
    metrics = make(target_kl=1e-6)(lagged, update=0, version=4)
    assert metrics["lag_kl"] > 1e-2
    assert metrics["update_epochs_done"] == 1.0


def test_targets_and_old_values_are_in_the_units_that_the_critic_has_after_the_batch() -> None:
    """So that the critic's first error is that of its proximal values, and none of its clip is used up."""
    b, ppo = batch(), make()
    before = float(ppo.network.value_normalizer.std)
    targets = targets_of(ppo.network, b, ppo.config)
    assert abs(float(ppo.network.value_normalizer.std) / before - 1.0) > 1e-3
    with torch.no_grad():
        now = evaluate_batch(ppo.network, b).values
    assert torch.allclose(now, targets.proximal_values, atol=1e-4)


def test_observation_statistics_move_after_the_update_and_count_valid_steps() -> None:
    """In the middle of it, acting and learning would normalize differently."""
    b, ppo = batch(), make()
    base, slots = ppo.network.encoder.split(b.obs)
    expected = [ObservationNormalizer(SPACES.base_size), ObservationNormalizer(SPACES.slot_size)]
    own = [ppo.network.encoder.base_normalizer, ppo.network.encoder.slot_normalizer]
    for fresh, old, rows in zip(expected, own, (base, slots.flatten(0, 1)), strict=True):
        fresh.load_state_dict(old.state_dict())
        count = float(old.count)
        fresh.update(rows)
        assert float(fresh.count) == count + len(rows)
    metrics = ppo(b, update=0, version=0)
    assert metrics["ratio_error"] < 1e-5
    for fresh, moved in zip(expected, own, strict=True):
        assert torch.equal(fresh.mean, moved.mean)
        assert torch.equal(fresh.variance, moved.variance)


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


def gradient_norm(network: FactoredRecurrentActorCritic) -> float:
    return float(sum(p.grad.double().square().sum() for p in network.parameters() if p.grad is not None) ** 0.5)


def test_the_global_gradient_norm_is_clipped() -> None:
    free, clipped = make(grad_clip=1e9), make(grad_clip=0.05)
    norms = [ppo(batch(), update=0, version=0) for ppo in (free, clipped)]
    assert gradient_norm(free.network) > 0.1
    assert gradient_norm(clipped.network) == pytest.approx(0.05, rel=1e-3)
    for name in ("grad_norm_trunk", "grad_norm_heads", "grad_norm_critic"):  # reported as they were
        assert norms[0][name] == norms[1][name]


def test_a_floor_leaves_the_policy_at_least_half_of_its_say() -> None:
    """With so many choices that floors would take everything, each is cut to 1 / (2 k)."""
    logits, mask = torch.zeros(64), torch.arange(64) < 40
    logits[3] = 50.0
    probability = masked_log_probs(logits, mask, floor=0.05).exp()
    assert float(probability[3]) == pytest.approx(0.5 + 0.5 / 40, rel=1e-5)
    assert torch.allclose(probability[mask].min(), torch.tensor(0.5 / 40))
    assert float(probability.sum()) == pytest.approx(1.0, rel=1e-5)
    assert not bool(probability[~mask].any())
