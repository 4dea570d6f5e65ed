"""The factored PPO objective on N flat steps: pure functions, tensors in, tensors out.

Denominators are passed in, so that the minibatches of a batch add up to the batch: at ratio 1 the policy term is the
exact gradient of the joint policy over its unforced steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from actors.policy.network import Evaluation
from learner.config import LearnerConfig
from learner.ppo.targets import Targets


class Denominators(NamedTuple):
    """The share of a minibatch in the batch's steps, so that the losses of minibatches add up to that of the batch."""

    policy: Tensor  # scalar: unforced steps; [H]: each head's active steps
    value: float  # valid steps


class Loss(NamedTuple):
    """Losses of a minibatch. Only `total` may have a gradient."""

    total: Tensor
    policy: Tensor
    value: Tensor
    kl: Tensor  # KL divergence of the policy from the proximal one


def make_denominators(targets: Targets, config: LearnerConfig, minibatches: int) -> Denominators:
    steps = targets.counted.sum(0) if config.policy_denominator == "head_steps" else targets.unforced.sum()
    return Denominators(steps.clamp(min=1) / minibatches, targets.unforced.numel() / minibatches)


def entropy_coefficient(config: LearnerConfig, update: int) -> float:
    """Return the entropy coefficient: linear from `entropy_start` to `entropy_end`, then constant."""
    c = config
    done = min(1.0, update / c.entropy_anneal_updates) if c.entropy_anneal_updates else 1.0
    return c.entropy_start + done * (c.entropy_end - c.entropy_start)


def objective(
    out: Evaluation,
    t: Targets,
    config: LearnerConfig,
    entropy_coef: float,
    denominators: Denominators,
    continuous: int = 0,
) -> Loss:
    """Return the loss of some steps. The last `continuous` heads have one ratio, and an entropy coefficient of their
    own."""
    policy = policy_losses(out.log_probs, t, t.counted, config, denominators.policy, continuous).sum()
    value = value_loss(out.values, t.proximal_values, t.returns, config.value_clip, denominators.value)
    categorical = out.entropies.shape[1] - continuous
    parts = (slice(0, categorical), entropy_coef), (slice(categorical, None), config.continuous_entropy_coef)
    total = policy + config.value_coef * value
    for columns, coefficient in parts[: 2 if continuous else 1]:
        per_head = denominators.policy[..., columns] if denominators.policy.dim() else denominators.policy
        bonus = entropy_bonus(out.entropies[:, columns], t.counted[:, columns], per_head)
        total = total - coefficient * bonus
    kl = k3((out.log_probs.detach() - t.proximal_log_probs).sum(-1), t.unforced)
    return Loss(total, policy.detach(), value.detach(), kl)


def policy_losses(
    log_probs: Tensor, t: Targets, counted: Tensor, config: LearnerConfig, denominator: Tensor, continuous: int = 0
) -> Tensor:
    """Return the policy's loss of each ratio over the `counted [N, H]` entries, from `log_probs [N, H]`.

    Ratios are to the behaviour policy, or to the proximal one if the objective is `decoupled`, whose advantages are
    already weighted. With one joint ratio, the advantage is that of the whole action.
    """
    log_ratio = log_probs - (t.proximal_log_probs if config.objective == "decoupled" else t.behaviour_log_probs)
    advantages = t.advantages
    if config.ratio == "joint":
        log_ratio, counted = log_ratio.sum(-1, keepdim=True), t.unforced[:, None]
    elif continuous:
        log_ratio = joined(log_ratio, continuous)
        heads = log_ratio.shape[1]  # continuous heads are always relevant, so any of their columns stands for all
        counted, advantages = counted[:, :heads], advantages[:, :heads]
        denominator = denominator[:heads] if denominator.dim() else denominator
    return clipped_surrogate(log_ratio.exp(), advantages, counted, config.clip, denominator)


def joined(columns: Tensor, continuous: int) -> Tensor:
    """Sum the last `continuous` columns of `[N, H]` into one: their head has one ratio."""
    if continuous < 2:
        return columns
    return torch.cat([columns[:, :-continuous], columns[:, -continuous:].sum(-1, keepdim=True)], -1)


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, counted: Tensor, clip: float, denominator: Tensor | float
) -> Tensor:
    """Clipped surrogate (Schulman et al., 2017) of each head, `[H]`; the policy's loss is their sum.

    `ratio`, `advantages` and `counted` (relevant and unforced) are `[N, H]`; `denominator` is a number, or one per head
    `[H]`.
    """
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip, 1.0 + clip) * advantages)
    return -surrogate.masked_fill(~counted, 0.0).sum(0) / denominator


def value_loss(
    values: Tensor, proximal_values: Tensor, returns: Tensor, clip: float | None, denominator: Tensor | float
) -> Tensor:
    """0.5 * max(unclipped, clipped) squared error, `[N]` each, in units of the return's running deviation."""
    error = (values - returns).square()
    if clip is not None:
        near = proximal_values + (values - proximal_values).clamp(-clip, clip)
        error = torch.maximum(error, (near - returns).square())
    return 0.5 * error.sum() / denominator


def entropy_bonus(entropies: Tensor, counted: Tensor, denominator: Tensor | float) -> Tensor:
    """Sum over relevant heads of normalized entropy, `[N, H]`, with the policy term's denominator."""
    return (entropies.masked_fill(~counted, 0.0).sum(0) / denominator).sum()


def k3(log_ratio: Tensor, counted: Tensor) -> Tensor:
    """Mean of (r - 1) - log r over counted entries (Schulman's k3 estimator of the KL divergence); 0 if none is
    counted."""
    terms = (log_ratio.expm1() - log_ratio).masked_fill(~counted, 0.0)
    return terms.sum() / counted.sum().clamp(min=1)
