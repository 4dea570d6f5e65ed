"""`Programs`: a `Stepper` as TorchScript, and `ActingPolicy`, which acts by them."""

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

_WARM_UP = 3  # calls until TorchScript has made its plan


class _Traced(nn.Module):
    """A step with plain tensors, to be traced: `greedy` has no noise."""

    def __init__(self, stepper: Stepper) -> None:
        super().__init__()
        self.stepper = stepper

    def forward(self, obs: Tensor, blueprints: Tensor, op: Tensor, slot: Tensor, rest: Tensor, *more: Tensor) -> Any:
        state, drawn = PolicyState(*more[:4]), more[4:]
        noise, deterministic = drawn if drawn else (obs.new_zeros(obs.shape[0], 64), True)
        *decided, after = self.stepper(obs, blueprints, MaskTensors(op, slot, rest), state, noise, deterministic)
        return *decided, *after


class Programs:
    """A step without Python, a third of its time where batches are small: greedy, and sampling. Each is made
    when it is first asked for.

    They give `(actions, log_probs, values, baseline values, h, c, cells, usage)` of `(obs, blueprint_indices, op mask,
    slot mask, rest mask, h, c, cells, usage)` and, where they sample, noise `[N, H]` and which rows are deterministic
    `[N]`. A row without a legal choice has log-probs that are not finite.
    """

    def __init__(self, network: FactoredRecurrentActorCritic) -> None:
        device = network.norm.weight.device
        inputs = [t.to(device) for t in example_inputs(network, 2)]
        self._plain, self._drawn = inputs[:9], (inputs[10], torch.zeros(2, dtype=torch.bool, device=device))
        self._stepper = Stepper(network)

    @cached_property
    def greedy(self) -> Any:
        return self._trace(*self._plain)

    @cached_property
    def sampling(self) -> Any:
        return self._trace(*self._plain, *self._drawn)

    def prepare(self) -> Programs:
        """Make both, and call them until TorchScript has its plan: tenths of a second that a caller would wait for."""
        with torch.inference_mode():
            for _ in range(_WARM_UP):
                self.greedy(*self._plain)
                self.sampling(*self._plain, *self._drawn)
        return self

    def of(self, network: FactoredRecurrentActorCritic) -> Programs:
        """The same with other weights."""
        other = copy.deepcopy(self)
        other.load(network)
        return other.prepare()

    def load(self, network: FactoredRecurrentActorCritic) -> None:
        """Take on other weights. TorchScript keeps some 40 KiB of every copy for ever, and nothing of this."""
        weights = Stepper(network).state_dict()
        self._stepper.load_state_dict(weights)
        for made in (self.__dict__.get(name) for name in ("greedy", "sampling")):
            if made is not None:
                made.stepper.load_state_dict(weights)

    def _trace(self, *inputs: Tensor) -> Any:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # about loops over what is fixed
            return torch.jit.trace(_Traced(self._stepper), inputs, check_trace=False)  # type: ignore[no-untyped-call]


class ActingPolicy:
    """A network as those have it who only act: `Policy` of a sampler. It is read when this is made, and by `take`."""

    def __init__(self, network: FactoredRecurrentActorCritic) -> None:
        self.network = network
        self._programs = None if network.config.compile else Programs(network)

    def take(self, weights: WeightSet) -> None:
        """Act by these from now on. Raises `UserError` where they do not fit."""
        load_weights(self.network, weights)
        if self._programs is not None:
            self._programs.load(self.network)

    def initial_state(self, batch: int) -> PolicyState:
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
        """As `FactoredRecurrentActorCritic.act`."""
        if self._programs is None:
            return self.network.act(obs, blueprint_indices, masks, state, noise, deterministic)
        device = self.network.norm.weight.device
        given = [torch.from_numpy(a).to(device) for a in (obs, blueprint_indices)]
        given += [*MaskTensors.of(masks, device), *state]
        if deterministic:
            out = self._programs.greedy(*given)
        else:
            drawn = torch.zeros(len(obs), dtype=torch.bool, device=device)
            out = self._programs.sampling(*given, torch.from_numpy(noise).to(device), drawn)
        if not bool(out[1].isfinite().all()):
            raise EmptyMask("a relevant head has no legal choice; mask the op that needs it")
        return self.network.decision(masks, *out[:4]), PolicyState(*out[4:])
