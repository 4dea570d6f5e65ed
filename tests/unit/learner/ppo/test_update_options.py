"""Every option of the objective against plain loops, and the update under each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from actors.config import ConfigError
from actors.policy.network import Evaluation
from learner.config import LearnerConfig
from learner.ppo.batch import Batch, make_batch
from learner.ppo.gae import head_advantages, normalize
from learner.ppo.objective import make_denominators, objective, ratio_metrics
from learner.ppo.optimizer import make_optimizer
from learner.ppo.targets import WEIGHT_LIMIT, Targets
from learner.ppo.update import PPOUpdate
from tests.support.learning.batches import targets_of
from tests.support.learning.toy import SPACES, SPEC, toy_network, toy_seed, toy_wave
from tests.support.learning.without_kernels import without_kernels

STEPS, HEADS = 30, len(SPEC.heads)
COUNTS = ((5, True), (2, False), (9, True), (4, False))


def batch(chunk_length: int | None = None, burn_in: int = 0) -> Batch:
    seeds = [toy_seed(n, truncated=cut_off, salt=i) for i, (n, cut_off) in enumerate(COUNTS)]
    return make_batch(toy_wave(toy_network(), seeds), SPACES, chunk_length, burn_in)


def make(**changes: Any) -> PPOUpdate:
    fields: dict[str, Any] = {"state_stride": 1, "gamma": 0.9, "target_kl": 10.0}
    network = toy_network()
    return PPOUpdate(network, make_optimizer(network, 1e-2, 0.0), LearnerConfig(**(fields | changes)), seed=1)


def random_step(columns: int) -> tuple[Evaluation, Targets]:
    noise = torch.Generator().manual_seed(5)

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(shape, generator=noise)

    behaviour = -draw(STEPS, HEADS).abs()
    unforced = torch.rand(STEPS, generator=noise) < 0.7
    counted = (torch.rand(STEPS, HEADS, generator=noise) < 0.6) & unforced[:, None]
    counted[:, 0] = unforced
    relevant = counted | ~unforced[:, None]
    moved, near = draw(STEPS, HEADS, scale=0.3), draw(STEPS, HEADS, scale=0.5)
    behaviour, moved, near = (x.masked_fill(~relevant, 0.0) for x in (behaviour, moved, near))
    targets = Targets(draw(STEPS, columns), draw(STEPS), draw(STEPS), behaviour + near, behaviour, counted, unforced)
    entropies, values = torch.rand(STEPS, HEADS, generator=noise), draw(STEPS)
    return Evaluation(behaviour + moved, entropies, values, values, draw(STEPS, 2), torch.zeros(STEPS, 0)), targets


def by_loops(out: Evaluation, t: Targets, c: LearnerConfig) -> float:
    """The policy term and the entropy term at coefficient 0.3, number by number."""
    reference = t.proximal_log_probs if c.objective == "decoupled" else t.behaviour_log_probs
    total = 0.0
    unforced = int(t.unforced.sum())
    for k in range(HEADS):
        own = entropy = 0.0
        for n in range(STEPS):
            if t.counted[n, k]:
                entropy += float(out.entropies[n, k])
                if c.ratio == "per_head":
                    r, a = float((out.log_probs[n, k] - reference[n, k]).exp()), float(t.advantages[n, k])
                    own += min(r * a, min(max(r, 0.8), 1.2) * a)
        active = int(t.counted[:, k].sum()) if c.policy_denominator == "head_steps" else unforced
        total -= (own + 0.3 * entropy) / active
    if c.ratio == "joint":
        for n in range(STEPS):
            if t.unforced[n]:
                r, a = float(np.exp(float((out.log_probs[n] - reference[n]).sum()))), float(t.advantages[n, 0])
                total -= min(r * a, min(max(r, 0.8), 1.2) * a) / unforced
    return total


OPTIONS: list[dict[str, Any]] = [
    {},
    {"objective": "decoupled"},
    {"ratio": "joint"},
    {"policy_denominator": "head_steps"},
    {"objective": "decoupled", "ratio": "joint"},
    {"objective": "decoupled", "policy_denominator": "head_steps"},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_loss_is_that_of_the_option_and_of_no_other(options: dict[str, Any]) -> None:
    columns = 1 if options.get("ratio") == "joint" else HEADS
    out, t = random_step(columns)
    for other in OPTIONS:
        if (other.get("ratio") == "joint") != (columns == 1):
            continue
        c = LearnerConfig(value_coef=0.0, **other)
        loss = objective(out, t, c, 0.3, make_denominators(t, c, 1))
        expected = by_loops(out, t, LearnerConfig(**options))
        assert (float(loss.total) == pytest.approx(expected, rel=1e-4)) == (other == options)


@pytest.mark.parametrize("options", OPTIONS)
def test_the_losses_of_the_heads_are_reported_and_add_up(options: dict[str, Any]) -> None:
    """In two passes over two minibatches each, also if the KL stop ends the second; in a single step, where all ratios
    are 1, each is the mean of the head's advantages."""
    metrics: dict[str, float] = {}
    for target in (10.0, 1e-4):
        ppo = make(update_epochs=2, minibatches=2, target_kl=target, **options)
        metrics = ppo(batch(), update=0, version=0)
        heads = {name: x for name, x in metrics.items() if name.startswith("loss_policy/")}
        assert len(heads) == (0 if options.get("ratio") == "joint" else HEADS)
        assert not heads or sum(heads.values()) == pytest.approx(metrics["loss_policy"], rel=1e-4, abs=1e-6)
    assert 0 < metrics["update_epochs_done"] < 2
    if heads:
        ppo, b = make(**options), batch()
        t = targets_of(toy_network(), b, ppo.config)
        metrics = ppo(b, update=0, version=0)
        for k, head in enumerate(SPEC.names):
            steps = t.counted[:, k].sum() if ppo.config.policy_denominator == "head_steps" else t.unforced.sum()
            expected = -float(t.advantages[:, k][t.counted[:, k]].sum() / steps)
            assert metrics[f"loss_policy/{head}"] == pytest.approx(expected, abs=1e-5)


def test_decoupled_weights_are_those_of_the_whole_action_truncated_at_two() -> None:
    """Old episodes: the present policy over the one that acted, a number per step, and never above the limit."""
    ppo, plain, b = make(objective="decoupled"), make(), batch()
    noise = 0.5 * torch.randn(b.log_probs.shape, generator=torch.Generator().manual_seed(0))
    relevant = torch.from_numpy(SPEC.relevance_table)[b.actions[..., 0]]
    b = b._replace(log_probs=b.log_probs + noise.masked_fill(~relevant, 0.0))
    weighted, ordinary = (targets_of(p.network, b, p.config) for p in (ppo, plain))
    seen = set()
    for n in range(b.size):
        change = float((weighted.proximal_log_probs[n] - weighted.behaviour_log_probs[n]).sum())
        weight = min(np.exp(change), 2.0)
        seen.add(weight == 2.0)
        expected = weight * ordinary.advantages[n].double()
        assert torch.allclose(weighted.advantages[n].double(), expected, rtol=1e-4, atol=1e-6)
    assert seen == {True, False}
    assert WEIGHT_LIMIT == 2.0


def test_q_op_gives_the_op_head_a_baseline_that_does_not_know_the_op() -> None:
    a, q, v = torch.tensor([1.0, -2.0, 4.0]), torch.tensor([3.0, 0.5, -1.0]), torch.tensor([2.0, 2.0, 2.0])
    heads = head_advantages(a, q, v, 3)
    assert heads[:, 0].tolist() == [2.0, -3.5, 1.0]  # G - V, as A = G - Q
    assert torch.equal(heads[:, 1], a)
    assert torch.equal(heads[:, 2], a)
    counted = torch.tensor([True, True, True])
    out = normalize(heads, counted)
    deviation = heads[:, 0].std(unbiased=False)
    for k in range(3):
        assert torch.allclose(out[:, k], (heads[:, k] - heads[:, k].mean()) / deviation, atol=1e-6)


@pytest.mark.parametrize("options", [*OPTIONS, {"value_clip": None}, {"chunk_length": 3, "burn_in": 2}])
def test_minibatches_add_up_under_every_option(options: dict[str, Any]) -> None:
    class Recorded(torch.optim.SGD):
        seen: list[list[Tensor]]

        def step(self, closure: Any = None) -> None:
            self.seen.append(
                [torch.zeros(1) if p.grad is None else p.grad.clone() for p in self.param_groups[0]["params"]]
            )

    def gradients(minibatches: int) -> list[list[Tensor]]:
        ppo = make(minibatches=minibatches, grad_clip=1e9, update_epochs=1, **options)
        recorder = Recorded([{"params": list(ppo.network.parameters()), "name": "all"}], lr=0.0)
        recorder.seen, ppo.optimizer = [], recorder
        metrics = ppo(batch(ppo.config.chunk_length, ppo.config.burn_in), update=0, version=0)
        assert metrics["update_epochs_done"] == 1.0
        return recorder.seen

    whole, parts = gradients(1), gradients(3)
    assert (len(whole), len(parts)) == (1, 3)
    for k, full in enumerate(whole[0]):
        mean = torch.stack([part[k] for part in parts]).mean(0)
        assert torch.allclose(mean, full, atol=1e-5 * max(1.0, float(full.abs().max())))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"chunk_length": 12}, "chunk_length is 12, but states are stored every 8 steps"),
        ({"chunk_length": 16, "burn_in": 4}, "burn_in is 4, but states are stored every 8 steps"),
        ({"burn_in": 8}, "burn_in needs learner.chunk_length"),
        ({"chunk_length": 0}, "chunk_length is 0: it must be at least 1"),
        ({"chunk_length": 8, "burn_in": -8}, "burn_in is -8: it cannot be negative"),
        ({"ratio": "joint", "policy_denominator": "head_steps"}, "one ratio has no heads to average"),
        ({"update_epochs": 0}, "update_epochs is 0"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LearnerConfig(**fields)


def test_epochs_and_learning_rate_follow_the_core_unless_chosen() -> None:
    recurrent, feedforward = (LearnerConfig().for_core(r) for r in (True, False))
    assert (recurrent.update_epochs, recurrent.lr) == (1, 2.5e-4)
    assert (feedforward.update_epochs, feedforward.lr) == (10, 3e-4)
    chosen = LearnerConfig(update_epochs=4, lr=1e-3)
    assert chosen.for_core(True) == chosen.for_core(False) == chosen


def test_padding_waste_is_what_the_buckets_run_and_bounded() -> None:
    """Lengths far apart: one rectangle would waste 2.2 times, buckets stay below the limit."""
    b = batch()
    assert make()(b, update=0, version=0)["padding_waste"] == 1.0  # kernels have none
    with without_kernels():
        metrics = make(minibatches=1)(batch(), update=0, version=0)
        assert 1.0 <= metrics["padding_waste"] < 1.3
        assert b.valid.numel() / b.size > 1.5


@pytest.mark.parametrize("options", [{}, {"objective": "decoupled"}, {"ratio": "joint"}])
def test_ratios_clips_and_kls_are_counted_over_the_steps_before_the_stop(options: dict[str, Any]) -> None:
    c = LearnerConfig(**options)
    out, t = random_step(1 if c.ratio == "joint" else HEADS)
    live = torch.arange(STEPS) < 22
    metrics = ratio_metrics(out.log_probs, t, live, c, SPEC.names)
    reference = t.proximal_log_probs if c.objective == "decoupled" else t.behaviour_log_probs
    changes = (out.log_probs - t.behaviour_log_probs).sum(1).exp().tolist()
    joint = [changes[n] if t.unforced[n] else 1.0 for n in range(22)]
    assert float(metrics["ratio_mean"]) == pytest.approx(np.mean(joint), rel=1e-5)
    assert float(metrics["ratio_max"]) == pytest.approx(max(joint), rel=1e-5)
    for k, name in enumerate(SPEC.names):
        kl, clipped, active = 0.0, 0, 0
        for n in range(22):
            if t.counted[n, k]:
                active += 1
                moved = (
                    (out.log_probs[n] - reference[n]).sum() if c.ratio == "joint" else (out.log_probs - reference)[n, k]
                )
                clipped += abs(float(moved.exp()) - 1.0) > 0.2
                log_ratio = float(out.log_probs[n, k] - t.behaviour_log_probs[n, k])
                kl += float(np.exp(log_ratio)) - 1.0 - log_ratio
        assert float(metrics[f"clip_fraction/{name}"]) == pytest.approx(clipped / active, rel=1e-5)
        assert float(metrics[f"kl/{name}"]) == pytest.approx(kl / active, rel=1e-3)
