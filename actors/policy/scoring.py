"""Log-probs and entropies of all heads in one batch, with an explicit gradient.

One large operation is faster than many small ones, whose call overhead exceeds their arithmetic.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from actors.config import MAX_FLOOR_MASS
from actors.policy.distribution import floor_share, masked_log_probs, normalized_entropy


class HeadScores(NamedTuple):
    """Output of `HeadScorer`."""

    log_probs: Tensor  # [N, H] of the given actions, 0 where irrelevant
    entropies: Tensor  # [N, H] normalized, 0 where irrelevant


class HeadScorer(nn.Module):
    """Pads heads of unequal size to `[N, H, W]`, with W the size of the largest, and scores them together."""

    columns: Tensor
    inside: Tensor
    back: Tensor

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        column = np.arange(max(sizes))[None, :]
        inside = column < np.array(sizes)[:, None]  # [H, W]
        first = np.cumsum((0, *sizes[:-1]))[:, None]
        self.equal = bool(inside.all())
        self.register_buffer("columns", torch.from_numpy(np.where(inside, first + column, 0).ravel()), persistent=False)
        self.register_buffer("inside", torch.from_numpy(inside), persistent=False)
        self.register_buffer("back", torch.from_numpy(np.flatnonzero(inside)), persistent=False)

    def forward(
        self,
        logits: Tensor,
        masks: Tensor,
        actions: Tensor,
        relevant: Tensor,
        floor: float,
        mass: float = MAX_FLOOR_MASS,
    ) -> HeadScores:
        """Score `actions [N, H]` given flat `logits [N, A]`, flat `masks [N, A]` and `relevant [N, H]`."""
        shape = (actions.shape[0], *self.inside.shape)
        if self.equal:
            padded, legal = logits.view(shape), masks.view(shape)
        else:
            padded = _PadColumns.apply(logits, self.columns, self.back).view(shape)  # type: ignore[no-untyped-call]
            legal = masks.index_select(1, self.columns).view(shape) & self.inside
        scores = _MaskedScores.apply(padded, legal, actions, relevant, floor, mass)  # type: ignore[no-untyped-call]
        return HeadScores(*scores)


class _PadColumns(torch.autograd.Function):
    """Gathers columns of `[N, A]` into a padded layout; the gradient is gathered back, ignoring padding."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, columns: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return x.index_select(1, columns)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return grads[0].index_select(1, back), None, None


class _MaskedScores(torch.autograd.Function):
    """Computes `masked_log_probs` of the chosen actions and `normalized_entropy`.

    With p = softmax over k legal choices and q = (1 - k f) p + f, where f is `floor_share`, the gradients are those of
    log q of the choice and of -sum q log q / log k.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, mask: Tensor, actions: Tensor, relevant: Tensor, floor: float, mass: float
    ) -> tuple[Tensor, Tensor]:
        table = masked_log_probs(logits, mask, floor, mass)
        choice = actions.unsqueeze(-1)
        ctx.save_for_backward(logits, mask, table, choice, relevant)
        ctx.floor, ctx.mass = floor, mass
        irrelevant = ~relevant
        log_prob = table.gather(-1, choice).squeeze(-1).masked_fill(irrelevant, 0.0)
        return log_prob, normalized_entropy(table, mask).masked_fill(irrelevant, 0.0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        logits, mask, table, choice, relevant = ctx.saved_tensors
        grad_log_prob, grad_entropy = (g.unsqueeze(-1) for g in grads)
        illegal = ~mask
        legal = mask.sum(-1, keepdim=True)
        p_log = logits.float().masked_fill(illegal, -torch.inf).log_softmax(-1)
        p = p_log.exp()
        # d log q / d log p of the choice is in [0, 1], even if p and q underflow.
        pull = grad_log_prob * (p_log.gather(-1, choice) - table.gather(-1, choice)).exp()
        to_p = (table + 1.0) * (-grad_entropy / legal.clamp(min=2).log())
        if ctx.floor:
            keep = 1.0 - legal * floor_share(legal, ctx.floor, ctx.mass)
            pull, to_p = pull * keep, to_p * keep
        to_p = to_p.masked_fill(illegal, 0.0)
        to_logits = p * (to_p - (p * to_p).sum(-1, keepdim=True) - pull)
        to_logits = to_logits.scatter_add(-1, choice, pull)
        return to_logits.masked_fill(~relevant.unsqueeze(-1), 0.0), None, None, None, None, None
