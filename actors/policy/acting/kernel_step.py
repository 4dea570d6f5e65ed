"""`KernelStep`: the policy's step by the kernels of `actors.policy.kernels`, with arrays in and out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.policy.acting.layout import lay_out
from actors.policy.kernels.compile import compile_kernels
from actors.policy.kernels.cache import PRECISION
from actors.policy.kernels.step import run_step
from actors.policy.network import FactoredRecurrentActorCritic
from actors.types.actions import ActionMasks

Array = NDArray[Any]
States = tuple[Array, Array, Array, Array]
"""The arrays of a `PolicyState`."""


class KernelDecision(NamedTuple):
    """Decisions of N rows."""

    actions: Array  # int64 [N, H]
    log_probs: Array  # [N, H], 0 where irrelevant
    masks: Array  # bool [N, A] in force
    values: Array  # [2, N] values and baseline values, denormalized
    all_legal: bool  # whether every relevant head had a legal choice; where not, log-probs are not finite


class KernelStep:
    """A copy of a network for which `has_kernels`. It keeps nothing between calls, so threads may share it."""

    def __init__(self, network: FactoredRecurrentActorCritic) -> None:
        compile_kernels()
        spec = network.spaces.action
        self._run, self._heads, self._choices = run_step.of(PRECISION), len(spec.heads), spec.flat_size
        self.load(network)

    def load(self, network: FactoredRecurrentActorCritic) -> None:
        """Lay out the weights of a network of the same architecture."""
        self._weights = lay_out(network)

    def __call__(
        self,
        obs: Array,
        blueprint_indices: Array,
        masks: ActionMasks,
        rows: Array,
        before: States,
        after: States,
        noise: Array,
        greedy: Array,
    ) -> KernelDecision:
        """Run a step of N rows, whose recurrent states are at `rows [N]` of `before`, and write those after it there in
        `after`, which may be the same arrays."""
        n = len(obs)
        actions, log_probs = np.empty((n, self._heads), np.int64), np.empty((n, self._heads), np.float32)
        in_force, values = np.empty((n, self._choices), np.bool_), np.empty((2, n), np.float32)
        legal = (_flat(m, n) for m in (masks.op, masks.op[:, :0] if masks.slot is None else masks.slot, masks.rest))
        inputs = (_plain(obs), _plain(blueprint_indices), *legal, rows, *before, _plain(noise), greedy)
        all_legal = self._run(*self._weights, *inputs, actions, log_probs, in_force, values, *after)
        return KernelDecision(actions, log_probs, in_force, values, all_legal)


def _plain(array: Array) -> Array:
    """Return an array as the kernels are compiled for: contiguous and writable."""
    flags = array.flags
    return array if flags.c_contiguous and flags.writeable and flags.aligned else array.copy("C")


def _flat(mask: Array, rows: int) -> Array:
    return _plain(mask).reshape(rows, mask.size // rows)
