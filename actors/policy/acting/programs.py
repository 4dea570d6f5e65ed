"""`TracedPolicy`: the policy's step traced to TorchScript, and `ActingPolicy`, which samplers act with."""

from __future__ import annotations

import copy
import warnings
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actors.policy.acting.exported import example_inputs
from actors.policy.acting.stepper import Stepper
from actors.policy.network import ActOutput, EmptyMask, FactoredRecurrentActorCritic, MaskTensors
from actors.policy.publish import load_weights
from actors.policy.state import PolicyState
from actors.types.actions import ActionMasks
from actors.types.weights import WeightSet

_WARM_UP = 3  # calls until TorchScript has optimized its graph


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
        self._stepper = Stepper(network)

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
    """A `Policy` for samplers that acts with a `TracedPolicy`, or with the compiled network if `policy.compile`.

    The weights of `network` are copied in the constructor and by `load`; later changes to it have no effect.
    """

    def __init__(self, network: FactoredRecurrentActorCritic) -> None:
        self.network = network
        self._traced = None if network.config.compile else TracedPolicy(network)

    def load(self, weights: WeightSet) -> None:
        """Act with `weights` from now on. Raises `UserError` if they do not fit the network."""
        load_weights(self.network, weights)
        if self._traced is not None:
            self._traced.load(self.network)

    def initial_state(self, batch: int) -> PolicyState:
        """See `FactoredRecurrentActorCritic.initial_state`."""
        return self.network.initial_state(batch)

    @torch.inference_mode()
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
        if self._traced is None:
            return self.network.act(obs, blueprint_indices, masks, state, noise, deterministic)
        device = self.network.norm.weight.device
        inputs = [torch.from_numpy(a).to(device) for a in (obs, blueprint_indices)]
        inputs += [*MaskTensors.of(masks, device), *state]
        if deterministic:
            out = self._traced.greedy(*inputs)
        else:
            no_row = torch.zeros(len(obs), dtype=torch.bool, device=device)
            out = self._traced.sampling(*inputs, torch.from_numpy(noise).to(device), no_row)
        if not bool(out[1].isfinite().all()):
            raise EmptyMask("a relevant head has no legal choice; mask the op that needs it")
        return self.network.decision(masks, *out[:4]), PolicyState(*out[4:])
