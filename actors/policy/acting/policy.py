"""`ActingPolicy`: a network that acts for samplers and servers, by a compiled kernel or eagerly."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from actors.policy.network import ActOutput, EmptyMask, FactoredRecurrentActorCritic, MaskTensors
from actors.policy.publish import load_weights
from actors.policy.state import PolicyState
from actors.types.actions import ActionMasks
from actors.types.weights import WeightSet

if TYPE_CHECKING:
    from actors.policy.kernels import KernelOutput, NetworkKernels


class Program(Protocol):
    """What runs steps of many environments or sessions: a network or a rule."""

    def run(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        states: PolicyState,
        rows: NDArray[np.int64],
        noise: NDArray[np.float64],
        greedy: NDArray[np.bool_],
        keep: bool = True,
    ) -> ActOutput:
        """Choose for N rows, `obs [N, D]`, whose recurrent states are at `rows [N]` of `states`; those that are marked
        in `greedy [N]` take the most likely choices, the others samples determined by `noise [N, H]`.

        If `keep`, the states after the step replace those before it. A row with a relevant head without legal choices
        has non-finite log-probs.
        """
        ...


class ActingPolicy:
    """A `Policy` for samplers and a `Program` for servers. On a CPU, a step is one compiled kernel; networks and
    devices without kernels act by the network itself. `form` says which. Threads may share it.

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
        deterministic: bool = False,
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
        return self._output(decision), after

    def run(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        states: PolicyState,
        rows: NDArray[np.int64],
        noise: NDArray[np.float64],
        greedy: NDArray[np.bool_],
        keep: bool = True,
    ) -> ActOutput:
        """See `Program.run`."""
        if self._kernels is not None:
            if not keep:
                states, rows = states.rows(torch.from_numpy(rows)), np.arange(len(rows))
            arrays = states.h.numpy(), states.c.numpy()
            given = obs, blueprint_indices, masks, noise, greedy, rows
            return self._output(self._kernels.step(self._weights, *given, arrays, arrays))
        device, taken = states.h.device, (rows, obs, blueprint_indices, noise, greedy)
        index, features, blueprints, uniform, likely = (torch.from_numpy(a).to(device) for a in taken)
        with torch.inference_mode():
            legal, before = MaskTensors.from_masks(masks, device), states.rows(index)
            step = self.network.step(features, blueprints, legal, before, uniform, likely)
            if keep:
                for tensor, updated in zip(states, step.state, strict=True):
                    tensor.index_copy_(1, index, updated)
            return self.network.decision(masks, *step[:4])

    def _output(self, decision: KernelOutput) -> ActOutput:
        actions, log_probs, in_force, both, _ = decision
        values, baselines = both[0], both[1]
        bootstrap = values if self.network.config.bootstrap == "sampled" else baselines
        return ActOutput(actions, log_probs, in_force, values, baselines, bootstrap)
