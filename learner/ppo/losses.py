"""The factored PPO objective on N flat steps: pure functions, tensors in, tensors out.

Denominators are passed in, so that the minibatches of a batch add up to the batch: at ratio 1 the policy term is the
exact gradient of the joint policy over its unforced steps.
"""

from __future__ import annotations

import torch
from torch import Tensor


def policy_losses(
    ratio: Tensor, advantages: Tensor, counted: Tensor, clip: float, denominator: Tensor | float
) -> Tensor:
    """Clipped surrogate (Schulman et al., 2017) of each head, `[H]`; the policy's loss is their sum.

    `ratio [N, H]` of each head to the reference policy; `advantages [N]`, or `[N, H]`;
    `counted [N, H]` = relevant and unforced; `denominator` a number, or one per head `[H]`.
    """
    a = advantages.unsqueeze(-1) if advantages.dim() == 1 else advantages
    surrogate = torch.minimum(ratio * a, ratio.clamp(1.0 - clip, 1.0 + clip) * a)
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


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """1 - Var[returns - values] / Var[returns]; 0 when the returns have no variance."""
    variance = returns.var(unbiased=False) if returns.numel() else returns.new_zeros(())
    residual = (returns - values).var(unbiased=False) if returns.numel() else variance
    return torch.where(variance > 1e-12, 1.0 - residual / variance.clamp(min=1e-12), torch.zeros_like(variance))
