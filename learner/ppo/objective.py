"""The loss of a minibatch, and the ratio metrics of an update."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from actors.policy.network import Evaluation
from learner.config import LearnerConfig
from learner.ppo import losses
from learner.ppo.targets import Targets, ranges


class Denominators(NamedTuple):
    """The share of a minibatch in the batch's steps, so that the losses of minibatches add up to that of the batch."""

    policy: Tensor  # scalar: unforced steps; [H]: each head's active steps
    value: float  # valid steps


def make_denominators(targets: Targets, config: LearnerConfig, minibatches: int) -> Denominators:
    steps = targets.counted.sum(0) if config.policy_denominator == "head_steps" else targets.unforced.sum()
    return Denominators(steps.clamp(min=1) / minibatches, targets.unforced.numel() / minibatches)


def entropy_coefficient(config: LearnerConfig, update: int) -> float:
    """Return the entropy coefficient: linear from `entropy_start` to `entropy_end`, then constant; never below
    `entropy_coef_min`."""
    c = config
    updates = c.entropy_anneal_updates if c.entropy_anneal_share is None else c.entropy_anneal_share * c.updates
    done = min(1.0, update / updates) if updates else 1.0
    return max(c.entropy_coef_min, c.entropy_start + done * (c.entropy_end - c.entropy_start))


class Loss(NamedTuple):
    """Losses of a minibatch. Only `total` may have a gradient."""

    total: Tensor
    policy: Tensor
    value: Tensor
    kl: Tensor  # KL divergence of the policy from the proximal one


def joined(columns: Tensor, continuous: int) -> Tensor:
    """Sum the last `continuous` columns of `[N, H]` into one: their head has one ratio."""
    if continuous < 2:
        return columns
    return torch.cat([columns[:, :-continuous], columns[:, -continuous:].sum(-1, keepdim=True)], -1)


def objective(
    out: Evaluation,
    t: Targets,
    config: LearnerConfig,
    entropy_coef: float,
    denominators: Denominators,
    continuous: int = 0,
) -> Loss:
    """Return the loss of some steps. Ratios are to the behaviour policy, or to the proximal one if the objective is
    `decoupled`, whose advantages are already weighted. With one joint ratio, the advantage is that of the whole action.
    The last `continuous` heads have one ratio, and an entropy coefficient of their own.
    """
    reference = t.proximal_log_probs if config.objective == "decoupled" else t.behaviour_log_probs
    policy = _policy_losses(out.log_probs - reference, t, t.counted, config, denominators.policy, continuous).sum()
    value = losses.value_loss(out.values, t.proximal_values, t.returns, config.value_clip, denominators.value)
    categorical = out.entropies.shape[1] - continuous
    parts = (slice(0, categorical), entropy_coef), (slice(categorical, None), config.continuous_entropy_coef)
    total = policy + config.value_coef * value
    for columns, coefficient in parts[: 2 if continuous else 1]:
        per_head = denominators.policy[..., columns] if denominators.policy.dim() else denominators.policy
        bonus = losses.entropy_bonus(out.entropies[:, columns], t.counted[:, columns], per_head)
        total = total - coefficient * bonus
    kl = losses.k3((out.log_probs.detach() - t.proximal_log_probs).sum(-1), t.unforced)
    return Loss(total, policy.detach(), value.detach(), kl)


def _policy_losses(
    moved: Tensor, t: Targets, counted: Tensor, config: LearnerConfig, share: Tensor, continuous: int
) -> Tensor:
    """Return the policy's loss of each ratio, from log-ratios `moved [N, H]`; `share` is the denominator."""
    advantages = t.advantages
    if config.ratio == "joint":
        moved, counted = moved.sum(-1, keepdim=True), t.unforced[:, None]
    elif continuous:
        moved = joined(moved, continuous)
        heads = moved.shape[1]  # continuous heads are always relevant, so any of their columns stands for all
        counted, advantages, share = counted[:, :heads], advantages[:, :heads], share[:heads] if share.dim() else share
    return losses.policy_losses(moved.exp(), advantages, counted, config.clip, share)


@torch.no_grad()
def head_losses(
    log_probs: Tensor,
    t: Targets,
    live: Tensor,
    config: LearnerConfig,
    share: Tensor,
    heads: tuple[str, ...],
    continuous: int = 0,
) -> dict[str, Tensor]:
    """Return the policy's loss of each head over the evaluated steps before the KL stop, as in `ratio_metrics`. With
    one ratio for all heads there is none."""
    if config.ratio == "joint":
        return {}
    reference = t.proximal_log_probs if config.objective == "decoupled" else t.behaviour_log_probs
    counted = t.counted & live[:, None]
    found = _policy_losses(log_probs - reference, t, counted, config, share, continuous)
    found = found.nan_to_num(posinf=0.0, neginf=0.0)
    return {f"loss_policy/{name}": found[part].sum() for name, part in ranges(_names(heads, continuous))}


def _names(heads: tuple[str, ...], continuous: int) -> tuple[str, ...]:
    return (*heads[:-continuous], "continuous") if continuous else heads


@torch.no_grad()
def ratio_metrics(
    log_probs: Tensor, t: Targets, live: Tensor, config: LearnerConfig, heads: tuple[str, ...], continuous: int = 0
) -> dict[str, Tensor]:
    """Return ratios, clip fractions and KL over the evaluated steps, `log_probs [M, H]`, that came before the KL stop
    (`live [M]`)."""
    log_ratio = joined(log_probs - t.behaviour_log_probs, continuous)
    decoupled = config.objective == "decoupled"
    moved = joined(log_probs - t.proximal_log_probs, continuous) if decoupled else log_ratio
    heads = _names(heads, continuous)
    if config.ratio == "joint":
        moved = moved.sum(-1, keepdim=True)
    counted, seen = t.counted[:, : len(heads)] & live[:, None], live.sum().clamp(min=1)
    active = counted.sum(0).clamp(min=1)
    clipped = ((moved.exp() - 1.0).abs() > config.clip) & counted
    k3 = (log_ratio.exp() - 1.0 - log_ratio).masked_fill(~counted, 0.0).sum(0) / active
    joint = log_ratio.sum(-1).exp().masked_fill(~t.unforced, 1.0).masked_fill(~live, 0.0)
    metrics = {"ratio_mean": joint.sum() / seen, "ratio_max": joint.amax()}
    clip_fraction = clipped.sum(0) / active
    metrics |= {f"clip_fraction/{name}": clip_fraction[part].mean() for name, part in ranges(heads)}
    return metrics | {f"kl/{name}": k3[part].mean() for name, part in ranges(heads)}
