"""The kernels of the optimizer, called with tensors on a CPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learner.kernels.compile import load_kernels

_LIKE = np.zeros(0, np.float32)


def adamw_step(parameters: list[Tensor], states: list[dict[str, Any]], settings: list[float], decay: float) -> None:
    """Take a step of AdamW with `settings` (learning rate, two betas, eps) in place."""
    moments = ([s[name] for s in states] for name in ("exp_avg", "exp_avg_sq", "step"))
    grads = [p.grad.contiguous() for p in parameters if p.grad is not None]
    places = (_addresses(tensors) for tensors in (parameters, grads, *moments))
    load_kernels().adamw(_LIKE, _counts(parameters), *places, decay, *settings)


def limit_norm(grads: list[Tensor], limit: float, groups: list[int]) -> Tensor:
    """Scale gradients in place so that their global norm is at most `limit`. Return the norms before scaling, of each
    group and of everything; `groups` are the groups of the gradients, from 0 on."""
    squares, places, counts = np.empty(len(grads)), _addresses(grads), _counts(grads)
    kernels = load_kernels()
    kernels.squares(_LIKE, places, counts, squares)
    norms = np.sqrt([*np.bincount(groups, squares), squares.sum()])
    if not norms[-1] + 1e-6 <= limit:  # NaN too
        kernels.scale(_LIKE, places, counts, limit / (norms[-1] + 1e-6))
    return torch.from_numpy(norms).float()


def _addresses(tensors: Iterable[Tensor]) -> NDArray[np.int64]:
    return np.array([t.data_ptr() for t in tensors], np.int64)


def _counts(tensors: Iterable[Tensor]) -> NDArray[np.int64]:
    return np.array([t.numel() for t in tensors], np.int64)
