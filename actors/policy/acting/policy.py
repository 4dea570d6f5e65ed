"""`ActingPolicy`: a network that acts, by a compiled kernel or eagerly."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from actors.policy.network import ActOutput, EmptyMask, FactoredRecurrentActorCritic
from actors.policy.publish import load_weights
from actors.policy.state import PolicyState
from actors.types.actions import ActionMasks
from actors.types.weights import WeightSet

if TYPE_CHECKING:
    from actors.policy.kernels import NetworkKernels


class ActingPolicy:
    """A `Policy` for samplers and servers. On a CPU, a step is one compiled kernel; networks and devices without
    kernels act by the network itself. `form` says which. Threads may share it.

    It acts with the weights that `network` has in the constructor, whatever happens to them later. `load` may write to
    `network`, so nothing else should use it.
    """

    def __init__(self, network: FactoredRecurrentActorCritic) -> None:
        self._kernels: NetworkKernels | None = None
        self.network = network
        if network.has_kernels:
            from actors.policy.kernels import NetworkKernels  # imports Numba

            self._kernels = NetworkKernels(network)
            self._weights = self._kernels.pack()
        else:
            self.network = copy.deepcopy(network)

    @property
    def form(self) -> Literal["kernel", "eager"]:
        """How the step runs: see the class."""
        return "eager" if self._kernels is None else "kernel"

    def load(self, weights: WeightSet) -> None:
        """Act with `weights` from now on. Raises `UserError` if they do not fit the network."""
        load_weights(self.network, weights)
        if self._kernels is not None:
            self._weights = self._kernels.pack()

    def initial_state(self, batch: int) -> PolicyState:
        """See `FactoredRecurrentActorCritic.initial_state`."""
        return self.network.initial_state(batch)

    def act(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        state: PolicyState,
        noise: NDArray[np.float64],
        deterministic: bool | NDArray[np.bool_] = False,
    ) -> tuple[ActOutput, PolicyState]:
        """See `FactoredRecurrentActorCritic.act`."""
        if self._kernels is None:
            return self.network.act(obs, blueprint_indices, masks, state, noise, deterministic)
        if state.h.shape[1] != len(obs):
            raise ValueError(f"{len(obs)} rows need a state of as many: it has {state.h.shape[1]}")
        h, c = (np.ascontiguousarray(t.numpy()) for t in (state.h, state.c))
        new_h, new_c = np.empty_like(h), np.empty_like(c)
        rows, greedy = np.arange(len(obs)), np.full(len(obs), deterministic)
        given = obs, blueprint_indices, masks, noise, greedy, rows
        decision = self._kernels.step(self._weights, *given, (h, c), (new_h, new_c))
        if not decision.all_legal:
            raise EmptyMask("a relevant head has no legal choice; mask the op that needs it")
        after = PolicyState(torch.from_numpy(new_h), torch.from_numpy(new_c), state.cells, state.usage)
        values, baselines = decision.values
        bootstrap = values if self.network.config.bootstrap == "sampled" else baselines
        return ActOutput(decision.actions, decision.log_probs, decision.masks, values, baselines, bootstrap), after
