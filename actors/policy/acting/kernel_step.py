"""`KernelStep`: the policy's step by the kernels of `actors.kernels.policy`, with arrays in and out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actors.kernels.policy.compile import load_step
from actors.policy.acting.layout import lay_out
from actors.policy.network import ActOutput, FactoredRecurrentActorCritic
from actors.policy.state import PolicyState
from actors.types.actions import ActionMasks

Array = NDArray[Any]


class KernelStep:
    """A copy of a network for which `has_kernels`. It keeps nothing between calls, so threads may share it."""

    def __init__(self, network: FactoredRecurrentActorCritic) -> None:
        spec = network.spaces.action
        self._run, self._heads, self._choices = load_step(), len(spec.heads), spec.flat_size
        self._shapes = network.spaces.obs_size, network.spaces.slots, spec.num_ops, len(spec.heads)
        self._slot_mask = spec.num_ops * spec.num_slots  # numbers per row
        self._rest_mask = max(1, self._slot_mask) * spec.rest_size
        self._bootstrap = 0 if network.config.bootstrap == "sampled" else 1
        self.load(network)

    def load(self, network: FactoredRecurrentActorCritic) -> None:
        """Lay out the weights of a network of the same architecture, for all calls from now on."""
        self._weights = lay_out(network)

    def of(self, network: FactoredRecurrentActorCritic) -> KernelStep:
        """Return a copy with the weights of `network`."""
        return KernelStep(network)

    def run(
        self,
        obs: Array,
        blueprint_indices: Array,
        masks: ActionMasks,
        states: PolicyState,
        rows: Array,
        noise: Array,
        greedy: Array,
        keep: bool = True,
    ) -> ActOutput:
        """See `Program.run`."""
        if not keep:
            own = states.rows(torch.from_numpy(rows))
            return self.step(obs, blueprint_indices, masks, own, noise, greedy)[0]
        arrays = tuple(t.numpy() for t in states)
        return self.decide(obs, blueprint_indices, masks, rows, arrays, arrays, noise, greedy)[0]

    def step(
        self, obs: Array, blueprint_indices: Array, masks: ActionMasks, state: PolicyState, noise: Array, greedy: Array
    ) -> tuple[ActOutput, PolicyState, bool]:
        """Run a step of N rows and return the decision, the state after it, and whether every relevant head had a legal
        choice."""
        before = tuple(_plain(t.numpy()) for t in state)
        if any(a.shape[1] != len(obs) for a in before):
            raise ValueError(f"{len(obs)} rows need a state of as many: it has {before[0].shape[1]}")
        after = tuple(np.empty_like(a) for a in before)
        rows = np.arange(len(obs))
        decision, all_legal = self.decide(obs, blueprint_indices, masks, rows, before, after, noise, greedy)
        return decision, PolicyState(*map(torch.from_numpy, after)), all_legal

    def decide(
        self,
        obs: Array,
        blueprint_indices: Array,
        masks: ActionMasks,
        rows: Array,
        before: tuple[Array, ...],
        after: tuple[Array, ...],
        noise: Array,
        greedy: Array,
    ) -> tuple[ActOutput, bool]:
        """Run a step of N rows, whose recurrent states are at `rows [N]` of `before`, the arrays of a `PolicyState`;
        write those after the step to `after`, which may be the same arrays.

        Returns the decision, and whether every relevant head had a legal choice; where not, log-probs are not finite.
        Raises `ValueError` for inputs of other shapes, which kernels do not check, and `IndexError` for a blueprint
        that there is not.
        """
        n = len(obs)
        slot = masks.op[:, :0] if masks.slot is None else masks.slot
        given = obs.shape[1], blueprint_indices.shape[1], masks.op.shape[1], noise.shape[1]
        lengths = {n, *map(len, (blueprint_indices, masks.op, slot, masks.rest, rows, noise, greedy))}
        if (
            given != self._shapes
            or len(lengths) > 1
            or (slot.size, masks.rest.size) != (n * self._slot_mask, n * self._rest_mask)
        ):
            raise ValueError(f"inputs for {n} rows do not fit the network: widths {given}, expected {self._shapes}")
        actions, log_probs = np.empty((n, self._heads), np.int64), np.empty((n, self._heads), np.float32)
        in_force, values = np.empty((n, self._choices), np.bool_), np.empty((2, n), np.float32)
        legal = (_flat(mask, n) for mask in (masks.op, slot, masks.rest))
        inputs = (_plain(obs), _plain(blueprint_indices), *legal, rows, *before, _plain(noise), greedy)
        all_legal = self._run(*self._weights, *inputs, actions, log_probs, in_force, values, *after)
        return ActOutput(actions, log_probs, in_force, values[0], values[1], values[self._bootstrap]), all_legal


def _plain(array: Array) -> Array:
    """Return an array as the kernels are compiled for: contiguous and writable."""
    flags = array.flags
    return array if flags.c_contiguous and flags.writeable and flags.aligned else array.copy("C")


def _flat(mask: Array, rows: int) -> Array:
    return _plain(mask).reshape(rows, mask.size // rows if rows else 0)
