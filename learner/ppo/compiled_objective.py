"""`compiled_loss`: the objective by a kernel, with an explicit gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.policy.network import Evaluation
from learner.config import LearnerConfig
from learner.kernels.compile import load_kernels
from learner.ppo.objective import Denominators
from learner.ppo.targets import Targets


def compiled_loss(
    out: Evaluation,
    t: Targets,
    reference: Tensor,
    config: LearnerConfig,
    entropy_coef: float,
    denominators: Denominators,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the fields of `Loss`. `reference [N, H]` are the log-probs that ratios refer to."""
    share = denominators.policy.to(torch.float32).expand(out.log_probs.shape[1]).contiguous()
    value_clip = np.inf if config.value_clip is None else config.value_clip
    numbers = np.array([config.clip, value_clip, config.value_coef, entropy_coef, denominators.value])
    given = (reference, t.proximal_log_probs, t.advantages, t.counted, t.unforced, t.returns, t.proximal_values, share)
    results = _Loss.apply(out.log_probs, out.entropies, out.values, given, numbers, config.ratio == "joint")  # type: ignore[no-untyped-call]
    total, parts = results
    return total, parts[1], parts[2], parts[3]


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        log_probs: Tensor,
        entropies: Tensor,
        values: Tensor,
        given: tuple[Tensor, ...],
        numbers: NDArray[np.float64],
        joint: bool,
    ) -> tuple[Tensor, Tensor]:
        grads = [torch.empty(x.shape) for x in (log_probs, entropies, values)]
        results = torch.empty(4)
        outputs = [x.detach().contiguous().numpy() for x in (log_probs, entropies, values)]
        rest = [x.contiguous().numpy() for x in given]
        load_kernels().loss(*outputs, *rest, numbers, joint, *(g.numpy() for g in grads), results.numpy())
        ctx.grads = grads
        ctx.mark_non_differentiable(results)
        return results[0].clone(), results

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        return *(g * given[0] for g in ctx.grads), None, None, None
