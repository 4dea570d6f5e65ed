"""What one step of the update minimises, and what it tells about itself (SPEC 8)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from actors.policy.network import Evaluation
from learner import losses
from learner.config import LearnerConfig
from learner.targets import Targets


class Denominators(NamedTuple):
    """A minibatch's share of the batch's steps, so that minibatches add up to the batch."""

    policy: Tensor  # scalar: unforced steps; [H]: each head's active steps
    value: float  # valid steps


def make_denominators(targets: Targets, config: LearnerConfig, minibatches: int) -> Denominators:
    steps = targets.counted.sum(0) if config.policy_denominator == "head_steps" else targets.unforced.sum()
    return Denominators(steps.clamp(min=1) / minibatches, targets.unforced.numel() / minibatches)


def entropy_coefficient(config: LearnerConfig, update: int) -> float:
    """Linear from `entropy_start` to `entropy_end` over `entropy_anneal_updates`; constant where that is 0."""
    if config.entropy_anneal_updates == 0:
        return config.entropy_coef
    share = min(1.0, update / config.entropy_anneal_updates)
    return config.entropy_start + share * (config.entropy_end - config.entropy_start)


def objective(
    out: Evaluation, t: Targets, config: LearnerConfig, entropy_coef: float, denominators: Denominators
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of some steps, and its parts by name: scalars, or `[H]` one per head.

    Ratios are to the behaviour policy; `decoupled` takes them to the proximal one, its advantages being weighted
    already. With one joint ratio the advantage is that of the whole action.
    """
    log_ratio = out.log_probs - t.behaviour_log_probs
    moved = out.log_probs - t.proximal_log_probs if config.objective == "decoupled" else log_ratio
    counted = t.counted
    if config.ratio == "joint":
        moved, counted = moved.sum(-1, keepdim=True), t.unforced[:, None]
    ratio = moved.exp()
    policy = losses.policy_loss(ratio, t.advantages, counted, config.clip, denominators.policy)
    value = losses.value_loss(out.values, t.proximal_values, t.returns, config.value_clip, denominators.value)
    entropy = losses.entropy_bonus(out.entropies, t.counted, denominators.policy)
    with torch.no_grad():
        joint = log_ratio.sum(-1).exp().masked_fill(~t.unforced, 1.0)
        active = t.counted.sum(0).clamp(min=1)
        clipped = ((ratio - 1.0).abs() > config.clip) & t.counted
        k3 = (log_ratio.exp() - 1.0 - log_ratio).masked_fill(~t.counted, 0.0)
        parts = {
            "loss_policy": policy.detach(),
            "loss_value": value.detach(),
            "ratio_mean": joint.mean(),
            "ratio_max": joint.amax(),
            "clip_fraction": clipped.sum(0) / active,
            "kl": k3.sum(0) / active,
        }
    return policy + config.value_coef * value - entropy_coef * entropy, parts
