"""The loss under every option, number by number against plain loops, and what is reported of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from actors.config import ConfigError
from actors.policy.network import Evaluation
from learner.config import LearnerConfig
from learner.ppo.metrics import explained_variance, step_metrics
from learner.ppo.objective import entropy_coefficient, make_denominators, objective
from learner.ppo.targets import Targets
from tests.support.learning.batches import targets_of, toy_batch, toy_ppo
from tests.support.learning.toy import SPEC, toy_network
from tests.support.learning.without_kernels import without_kernels

STEPS, HEADS = 30, len(SPEC.heads)
LENGTHS = (5, 2, 9, 4)
ENTROPY_COEF = 0.3
CONFIG = LearnerConfig(value_coef=0.7, continuous_entropy_coef=0.2)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"objective": "decoupled"},
    {"ratio": "joint"},
    {"policy_denominator": "head_steps"},
    {"objective": "decoupled", "ratio": "joint"},
    {"objective": "decoupled", "policy_denominator": "head_steps"},
    {"value_clip": None},
]


def random_step(config: LearnerConfig, continuous: int = 0) -> tuple[Evaluation, Targets]:
    """A learner that has moved away from both the behaviour and the proximal policy. The last `continuous` heads are
    relevant at every unforced step and share their advantage."""
    noise = torch.Generator().manual_seed(5)

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(shape, generator=noise)

    behaviour = -draw(STEPS, HEADS).abs()
    unforced = torch.rand(STEPS, generator=noise) < 0.7
    counted = (torch.rand(STEPS, HEADS, generator=noise) < 0.6) & unforced[:, None]
    for head in (0, *range(HEADS - continuous, HEADS)):
        counted[:, head] = unforced
    relevant = counted | ~unforced[:, None]
    moved, near = draw(STEPS, HEADS, scale=0.3), draw(STEPS, HEADS, scale=0.5)
    behaviour, moved, near = (x.masked_fill(~relevant, 0.0) for x in (behaviour, moved, near))
    advantages = draw(STEPS, 1 if config.ratio == "joint" else HEADS)
    if continuous:
        advantages[:, -continuous:] = advantages[:, -continuous:][:, :1]
    targets = Targets(advantages, draw(STEPS), draw(STEPS), behaviour + near, behaviour, counted, unforced)
    entropies, values = torch.rand(STEPS, HEADS, generator=noise), draw(STEPS)
    return Evaluation(behaviour + moved, entropies, values, values, draw(STEPS, 2), torch.zeros(STEPS, 0)), targets


def by_loops(out: Evaluation, t: Targets, c: LearnerConfig, continuous: int = 0) -> float:
    """Surrogates of each ratio, half squares, minus the bonus for entropy."""
    reference = t.proximal_log_probs if c.objective == "decoupled" else t.behaviour_log_probs
    heads = [[k] for k in range(HEADS - continuous)] + [list(range(HEADS - continuous, HEADS))] * (continuous > 0)
    unforced, total = int(t.unforced.sum()), 0.0
    for n in range(STEPS):
        ratios = [list(range(HEADS))] if c.ratio == "joint" else heads
        for columns in ratios:
            if not (t.unforced[n] if c.ratio == "joint" else t.counted[n, columns[0]]):
                continue
            r = math.exp(sum(float(out.log_probs[n, k] - reference[n, k]) for k in columns))
            a = float(t.advantages[n, 0 if c.ratio == "joint" else columns[0]])
            active = int(t.counted[:, columns[0]].sum()) if c.policy_denominator == "head_steps" else unforced
            total -= min(r * a, min(max(r, 0.8), 1.2) * a) / active
        for k in range(HEADS):
            active = int(t.counted[:, k].sum()) if c.policy_denominator == "head_steps" else unforced
            coefficient = c.continuous_entropy_coef if k >= HEADS - continuous else ENTROPY_COEF
            total -= coefficient * float(out.entropies[n, k]) / active * bool(t.counted[n, k])
        v, old, target = float(out.values[n]), float(t.proximal_values[n]), float(t.returns[n])
        near = v if c.value_clip is None else old + min(max(v - old, -c.value_clip), c.value_clip)
        total += c.value_coef * 0.5 * max((v - target) ** 2, (near - target) ** 2) / STEPS
    return total


def loss_of(out: Evaluation, t: Targets, c: LearnerConfig, continuous: int = 0) -> float:
    return float(objective(out, t, c, ENTROPY_COEF, make_denominators(t, c, 1), continuous).total)


@pytest.mark.parametrize("options", OPTIONS)
def test_the_loss_is_that_of_the_option_and_of_no_other(options: dict[str, Any]) -> None:
    config = replace(CONFIG, **options)
    out, t = random_step(config)
    expected = by_loops(out, t, config)
    for other in OPTIONS:
        if (other.get("ratio") == "joint") == (config.ratio == "joint"):
            same = loss_of(out, t, replace(CONFIG, **other)) == pytest.approx(expected, rel=1e-4)
            assert same == (other == options)


@pytest.mark.parametrize("options", [{}, {"policy_denominator": "head_steps"}])
def test_continuous_heads_have_one_ratio_and_an_entropy_coefficient_of_their_own(options: dict[str, Any]) -> None:
    config = replace(CONFIG, **options)
    out, t = random_step(config, continuous=3)
    assert loss_of(out, t, config, continuous=3) == pytest.approx(by_loops(out, t, config, 3), rel=1e-4)
    assert loss_of(out, t, config) != pytest.approx(by_loops(out, t, config, 3), rel=1e-2)


@pytest.mark.parametrize(
    ("values", "returns", "expected"),
    [
        ([1.0, 2.0, 4.0, 9.0], [1.0, 2.0, 4.0, 9.0], 1.0),
        ([6.0, 7.0, 9.0, 14.0], [1.0, 2.0, 4.0, 9.0], 1.0),  # a shift is no error
        ([-1.0, -2.0, -4.0, -9.0], [1.0, 2.0, 4.0, 9.0], -3.0),
        ([1.0, 2.0], [3.0, 3.0], 0.0),
    ],
)
def test_explained_variance(values: list[float], returns: list[float], expected: float) -> None:
    found = explained_variance(torch.tensor(values), torch.tensor(returns))
    assert float(found) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("updates", "expected"), [(10, {0: 0.05, 4: 0.032, 10: 0.005, 24: 0.005}), (0, {0: 0.005, 10**6: 0.005})]
)
def test_the_entropy_coefficient_falls_linearly_and_then_stays(updates: int, expected: dict[int, float]) -> None:
    config = LearnerConfig(entropy_start=0.05, entropy_end=0.005, entropy_anneal_updates=updates)
    assert {update: entropy_coefficient(config, update) for update in expected} == pytest.approx(expected)


@pytest.mark.parametrize("options", [{}, {"policy_denominator": "head_steps"}])
def test_the_losses_of_the_heads_are_reported_and_add_up(options: dict[str, Any]) -> None:
    """In two passes over two minibatches each, also if the KL stop ends the second; in a single step, where all ratios
    are 1, each is the mean of the head's advantages."""
    b = toy_batch(LENGTHS)
    for target in (10.0, 1e-4):
        metrics = toy_ppo(update_epochs=2, minibatches=2, target_kl=target, **options)(b, update=0, version=0)
        heads = [x for name, x in metrics.items() if name.startswith("loss_policy/")]
        assert len(heads) == HEADS
        assert sum(heads) == pytest.approx(metrics["loss_policy"], rel=1e-4, abs=1e-6)
        assert (metrics["update_epochs_done"] < 2) == (target < 1)
    ppo = toy_ppo(**options)
    t = targets_of(toy_network(), b, ppo.config)
    metrics = ppo(b, update=0, version=0)
    for k, head in enumerate(SPEC.names):
        steps = t.counted[:, k].sum() if options else t.unforced.sum()
        expected = -float(t.advantages[:, k][t.counted[:, k]].sum() / steps)
        assert metrics[f"loss_policy/{head}"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("options", [{}, {"objective": "decoupled"}, {"ratio": "joint"}])
def test_ratios_clips_and_kls_are_counted_over_the_steps_before_the_stop(options: dict[str, Any]) -> None:
    c = LearnerConfig(**options)
    out, t = random_step(c)
    live = torch.arange(STEPS) < 22
    metrics = step_metrics(out.log_probs, t, live, c, torch.tensor(1.0), SPEC.names)
    reference = t.proximal_log_probs if c.objective == "decoupled" else t.behaviour_log_probs
    changes = (out.log_probs - t.behaviour_log_probs).sum(1).exp().tolist()
    joint = [changes[n] if t.unforced[n] else 1.0 for n in range(22)]
    assert float(metrics["ratio_mean"]) == pytest.approx(np.mean(joint), rel=1e-5)
    assert float(metrics["ratio_max"]) == pytest.approx(max(joint), rel=1e-5)
    for k, name in enumerate(SPEC.names):
        kls, clipped = list[float](), list[bool]()
        for n in (n for n in range(22) if t.counted[n, k]):
            moved = (out.log_probs - reference)[n]
            clipped.append(abs(float((moved.sum() if c.ratio == "joint" else moved[k]).exp()) - 1.0) > 0.2)
            log_ratio = float(out.log_probs[n, k] - t.behaviour_log_probs[n, k])
            kls.append(np.exp(log_ratio) - 1.0 - log_ratio)
        assert float(metrics[f"clip_fraction/{name}"]) == pytest.approx(np.mean(clipped), rel=1e-5)
        assert float(metrics[f"kl/{name}"]) == pytest.approx(np.mean(kls), rel=1e-3)


def test_decoupled_weights_are_those_of_the_whole_action_truncated_at_two() -> None:
    """Old episodes: the present policy over the one that acted, a number per step, and never above the limit."""
    ppo, plain, b = toy_ppo(objective="decoupled"), toy_ppo(), toy_batch(LENGTHS)
    noise = 0.5 * torch.randn(b.log_probs.shape, generator=torch.Generator().manual_seed(0))
    relevant = torch.from_numpy(SPEC.relevance_table)[b.actions[..., 0]]
    b = b._replace(log_probs=b.log_probs + noise.masked_fill(~relevant, 0.0))
    weighted, ordinary = (targets_of(p.network, b, p.config) for p in (ppo, plain))
    change = (weighted.proximal_log_probs - weighted.behaviour_log_probs).sum(1, keepdim=True).numpy()
    weights = np.minimum(np.exp(change), 2.0)
    assert weights.min() < weights.max() == 2.0
    assert np.allclose(weighted.advantages, weights * ordinary.advantages.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("options", [*OPTIONS, {"chunk_length": 3, "burn_in": 2}])
def test_minibatches_add_up_under_every_option(options: dict[str, Any]) -> None:
    """Divided by the steps of the minibatch alone, short episodes would weigh more."""

    def gradients(minibatches: int) -> list[list[Tensor]]:
        ppo = toy_ppo(0.0, minibatches=minibatches, grad_clip=1e9, update_epochs=1, **options)
        parameters, seen = list(ppo.network.parameters()), list[list[Tensor]]()
        ppo.optimizer.register_step_pre_hook(lambda *_: seen.append([p.grad.clone() for p in parameters]))
        metrics = ppo(toy_batch(LENGTHS, ppo.config.chunk_length, ppo.config.burn_in), update=0, version=0)
        assert metrics["update_epochs_done"] == 1.0
        return seen

    (whole,), parts = gradients(1), gradients(3)
    assert len(parts) == 3
    for full, *own in zip(whole, *parts, strict=True):
        mean = torch.stack(own).mean(0)
        assert torch.allclose(mean, full, atol=1e-5 * max(1.0, float(full.abs().max())))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"chunk_length": 12}, "chunk_length is 12, but states are stored every 8 steps"),
        ({"chunk_length": 16, "burn_in": 4}, "burn_in is 4, but states are stored every 8 steps"),
        ({"burn_in": 8}, "burn_in needs learner.chunk_length"),
        ({"chunk_length": 8, "burn_in": -8}, "burn_in is -8: it cannot be negative"),
        ({"ratio": "joint", "policy_denominator": "head_steps"}, "one ratio has no heads to average"),
        ({"update_epochs": 0}, "update_epochs is 0"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LearnerConfig(**fields)


def test_padding_waste_is_what_the_buckets_run_and_bounded() -> None:
    """Lengths far apart: one rectangle would waste 1.8 times, buckets stay below the limit."""
    b = toy_batch(LENGTHS)
    assert toy_ppo()(b, update=0, version=0)["padding_waste"] == 1.0  # kernels have none
    with without_kernels():
        metrics = toy_ppo(minibatches=1)(b, update=0, version=0)
        assert 1.0 <= metrics["padding_waste"] < 1.3
        assert b.valid.numel() / b.size > 1.5
