"""`Program`: a network's step in the fastest form that there is for it, and `ActingPolicy`, which samplers act with.

On a CPU the step is a compiled kernel (`KernelStep`). What has no kernels is traced to TorchScript (`TracedPolicy`).
"""

from __future__ import annotations

import copy
import warnings
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actors.policy.acting.exported import example_inputs
from actors.policy.acting.stepper import Stepper
from actors.policy.network import ActOutput, EmptyMask, FactoredRecurrentActorCritic, MaskTensors, decision
from actors.policy.publish import load_weights
from actors.policy.state import PolicyState
from actors.types.actions import ActionMasks
from actors.types.weights import WeightSet

if TYPE_CHECKING:
    from actors.policy.acting.kernel_step import KernelStep

_WARM_UP = 3  # calls until TorchScript has optimized its graph


class Program(Protocol):
    """A copy of a network that runs steps of many environments or sessions."""

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


def make_program(network: FactoredRecurrentActorCritic) -> KernelStep | TracedPolicy:
    """Return the fastest program for a network, ready to run: a `KernelStep`, or a `TracedPolicy`."""
    return _kernel_step(network) or TracedPolicy(network).prepare()


def _kernel_step(network: FactoredRecurrentActorCritic) -> KernelStep | None:
    if not network.has_kernels:
        return None
    from actors.policy.acting.kernel_step import KernelStep  # imports Numba

    return KernelStep(network)


class _StepFunction(nn.Module):
    """`Stepper` with plain tensors as inputs, for tracing. Without noise it is greedy."""

    def __init__(self, stepper: Stepper) -> None:
        super().__init__()
        self.stepper = stepper

    def forward(self, obs: Tensor, blueprints: Tensor, op: Tensor, slot: Tensor, rest: Tensor, *more: Tensor) -> Any:
        state, sampling = PolicyState(*more[:4]), more[4:]
        noise, deterministic = sampling if sampling else (obs.new_zeros(obs.shape[0], 64), True)
        *decision, after = self.stepper(obs, blueprints, MaskTensors(op, slot, rest), state, noise, deterministic)
        return *decision, *after


class TracedPolicy:
    """A step as two TorchScript functions, `greedy` and `sampling`, each traced at first use.

    Without the Python interpreter a step of a small batch takes a third of the time.

    Inputs of both: obs, blueprint_indices, op mask, slot mask, rest mask, h, c, cells, usage. `sampling` also takes
    noise `[N, H]` and deterministic `[N]` bool. Outputs: actions, log_probs, values, baseline values, h, c, cells,
    usage. A row with a relevant head without legal choices has non-finite log-probs.
    """

    def __init__(self, network: FactoredRecurrentActorCritic) -> None:
        device = network.norm.weight.device
        inputs = [t.to(device) for t in example_inputs(network, 2)]
        self._inputs = inputs[:9]
        self._sampling_inputs = (inputs[10], torch.zeros(2, dtype=torch.bool, device=device))
        self._stepper, self._spaces = Stepper(network), network.spaces

    @cached_property
    def greedy(self) -> Any:
        """The traced step that takes the most likely choices."""
        return self._trace(*self._inputs)

    @cached_property
    def sampling(self) -> Any:
        """The traced step that samples, except in rows marked as deterministic."""
        return self._trace(*self._inputs, *self._sampling_inputs)

    def prepare(self) -> TracedPolicy:
        """Trace and warm up both functions, which takes tenths of a second, and return self."""
        with torch.inference_mode():
            for _ in range(_WARM_UP):
                self.greedy(*self._inputs)
                self.sampling(*self._inputs, *self._sampling_inputs)
        return self

    @torch.inference_mode()
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
        device = states.h.device
        index = torch.from_numpy(rows).to(device)
        inputs = [torch.from_numpy(a).to(device) for a in (obs, blueprint_indices)]
        inputs += [*MaskTensors.of(masks, device), *states.rows(index)]
        if greedy.all():
            out = self.greedy(*inputs)
        else:
            out = self.sampling(*inputs, *(torch.from_numpy(a).to(device) for a in (noise, greedy)))
        if keep:
            for tensor, updated in zip(states, out[4:], strict=True):
                tensor.index_copy_(1, index, updated)
        return decision(self._spaces, self._stepper.config, masks, *out[:4])

    def of(self, network: FactoredRecurrentActorCritic) -> TracedPolicy:
        """Return a prepared copy with the weights of `network`."""
        other = copy.deepcopy(self)
        other.load(network)
        return other.prepare()

    def load(self, network: FactoredRecurrentActorCritic) -> None:
        """Load the weights of `network` in place. TorchScript leaks about 40 KiB per copied trace, but none here."""
        weights = Stepper(network).state_dict()
        self._stepper.load_state_dict(weights)
        for traced in (self.__dict__.get(name) for name in ("greedy", "sampling")):
            if traced is not None:
                traced.stepper.load_state_dict(weights)

    def _trace(self, *inputs: Tensor) -> Any:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # the tracer warns about Python loops, whose lengths are fixed here
            return torch.jit.trace(_StepFunction(self._stepper), inputs, check_trace=False)  # type: ignore[no-untyped-call]


class ActingPolicy:
    """A `Policy` for samplers that acts with a kernel or a traced program, or with the compiled network if
    `policy.compile`; `form` says which.

    The weights of `network` are copied in the constructor and by `load`; later changes to it have no effect.
    """

    def __init__(self, network: FactoredRecurrentActorCritic) -> None:
        self.network = network
        self._kernel = _kernel_step(network)
        self._traced = None if self._kernel is not None or network.config.compile else TracedPolicy(network)

    @property
    def form(self) -> Literal["kernel", "traced", "compiled"]:
        """How the step runs: see the class."""
        return "kernel" if self._kernel is not None else "compiled" if self._traced is None else "traced"

    def load(self, weights: WeightSet) -> None:
        """Act with `weights` from now on. Raises `UserError` if they do not fit the network."""
        load_weights(self.network, weights)
        program = self._kernel or self._traced
        if program is not None:
            program.load(self.network)

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
        if self._kernel is not None:
            greedy = np.full(len(obs), deterministic)
            chosen, after, all_legal = self._kernel.step(obs, blueprint_indices, masks, state, noise, greedy)
        elif self._traced is not None:
            chosen, after, all_legal = self._run_traced(obs, blueprint_indices, masks, state, noise, deterministic)
        else:
            return self.network.act(obs, blueprint_indices, masks, state, noise, deterministic)
        if not all_legal:
            raise EmptyMask("a relevant head has no legal choice; mask the op that needs it")
        return chosen, after

    @torch.inference_mode()
    def _run_traced(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        state: PolicyState,
        noise: NDArray[np.float64],
        deterministic: bool,
    ) -> tuple[ActOutput, PolicyState, bool]:
        assert self._traced is not None
        device = self.network.norm.weight.device
        inputs = [torch.from_numpy(a).to(device) for a in (obs, blueprint_indices)]
        inputs += [*MaskTensors.of(masks, device), *state]
        if deterministic:
            out = self._traced.greedy(*inputs)
        else:
            no_row = torch.zeros(len(obs), dtype=torch.bool, device=device)
            out = self._traced.sampling(*inputs, torch.from_numpy(noise).to(device), no_row)
        return self.network.decision(masks, *out[:4]), PolicyState(*out[4:]), bool(out[1].isfinite().all())
