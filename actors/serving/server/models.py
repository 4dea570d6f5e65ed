"""`ModelVersions`: the newest weights, and older versions that are still in use."""

from __future__ import annotations

import threading

import numpy as np
import torch
from numpy.typing import NDArray

from actors.config.env import MAX_SLOTS, EnvConfig
from actors.errors import UserError
from actors.policy.acting.policy import ActingPolicy, Program
from actors.policy.network import ActOutput
from actors.policy.publish import architecture_hash, config_of, from_weights, is_masked, spaces_of
from actors.policy.state import PolicyState, StateSizes
from actors.rules.names import RuleFollower, rule_policy
from actors.serving.messages import MessageLayout
from actors.serving.options import ServeOptions
from actors.sessions.refusal import Reason, Refusal
from actors.slots.spaces import seed_spaces
from actors.types.actions import ActionMasks
from actors.types.spaces import Spaces
from actors.types.weights import WeightSet
from actors.version import installed
from actors.wire import policy_pb2


class ServedModel:
    """One version of the weights, with a program for each number of slots in use."""

    def __init__(self, weights: WeightSet, device: torch.device, previous: ServedModel | None = None) -> None:
        """Make programs for the same numbers of slots as those of `previous`."""
        self.version, self.generation = weights.version, weights.generation
        self.state_stride, self.burn_in = weights.state_stride, weights.burn_in
        self.sessions = 0  # that are pinned to this version
        self.spaces, self.masked, config = spaces_of(weights), is_masked(weights), config_of(weights)
        self.state_sizes, self.architecture = StateSizes.from_config(config), _architecture(weights)
        self.any_slots = self.spaces.slots > 0 and config.encoder == "slots"
        self._weights, self.device, self._lock = weights, device, threading.Lock()
        self._programs: dict[int, Program] = {}
        for slots in list(previous._programs) if previous else ():
            self._programs[slots] = self._make(self.spaces.with_slots(slots) if slots else self.spaces)

    def ready(self, spaces: Spaces) -> bool:
        """Whether the program for these spaces exists."""
        return spaces.slots in self._programs

    def program(self, spaces: Spaces) -> Program:
        """Return the program for these spaces. If it must be made, that may take tenths of a second."""
        if not self.ready(spaces):
            with self._lock:
                self._programs[spaces.slots] = self._programs.get(spaces.slots) or self._make(spaces)
        return self._programs[spaces.slots]

    def _make(self, spaces: Spaces) -> Program:
        return ActingPolicy(from_weights(self._weights, self.device, spaces))


class RuleProgram:
    """A `Program` of a rule. Rules do not sample."""

    def __init__(self, rule: RuleFollower) -> None:
        self._rule = rule

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
        """See `Program.run`; noise and greedy rows have no effect."""
        index, half = torch.from_numpy(rows), np.full_like(noise, 0.5)
        decision, after = self._rule.act(obs, blueprint_indices, masks, states.rows(index), half)
        if keep:
            for tensor, updated in zip(states, after, strict=True):
                tensor.index_copy_(1, index, updated)
        return decision


class ServedRule(ServedModel):
    """A rule by name, which needs no weights and never has a newer version. It runs on the CPU."""

    version = generation = burn_in = 0
    state_stride, masked, any_slots = 1, False, True
    device = torch.device("cpu")

    def __init__(self, name: str) -> None:
        """Raise `ConfigError` for a name that is no rule."""
        self.spaces, self.architecture = seed_spaces(EnvConfig().total_slots), name
        self.state_sizes = rule_policy(name, self.spaces).state_sizes
        self.sessions, self._programs, self._lock = 0, {}, threading.Lock()

    def _make(self, spaces: Spaces) -> Program:
        return RuleProgram(rule_policy(self.architecture, spaces))


class ModelVersions:
    """The newest version, and older ones to which sessions are pinned."""

    def __init__(self, source: WeightSet | ServedRule, device: torch.device) -> None:
        first = source if isinstance(source, ServedRule) else ServedModel(source, device)
        first.program(first.spaces)
        self.newest, self.spaces, self.state_sizes = first, first.spaces, first.state_sizes
        self.held = [first]  # in the order in which they were adopted
        family = [self.spaces.with_slots(s) for s in range(1, MAX_SLOTS + 1)] if first.any_slots else [self.spaces]
        self.layouts = {spaces.hash: MessageLayout(spaces) for spaces in family}

    def build(self, weights: WeightSet) -> ServedModel:
        """Build a model for `adopt`. This is slow, so run it in a thread. Raises `UserError` if the weights are of
        another architecture."""
        if _architecture(weights) != self.newest.architecture:
            raise UserError(
                f"weights {weights.version} have another architecture than those served: start another server for them"
            )
        return ServedModel(weights, self.newest.device, self.newest)

    def adopt(self, model: ServedModel) -> None:
        """Make `model` the newest version."""
        self.newest = model
        self.held.append(model)
        self.release_unused()

    def release_unused(self) -> None:
        """Let go of versions to which no session is pinned, except the newest."""
        self.held = [model for model in self.held if model.sessions or model is self.newest]

    def find(self, version: int) -> ServedModel | None:
        """Return the version if it is held."""
        return next((model for model in reversed(self.held) if model.version == version), None)

    def describe(self, options: ServeOptions) -> policy_pb2.GetModelResponse:
        """Return the served model, the spaces that it accepts, and the limits of the server."""
        response = policy_pb2.GetModelResponse(
            policy_version=self.newest.version,
            generation=self.newest.generation,
            held_versions=sorted(model.version for model in self.held),
            spaces_json=self.spaces.to_json(),
            session_ttl_s=options.session_ttl_s,
            max_message_bytes=options.max_message_bytes,
            server=installed(),
        )
        for spaces_hash, layout in self.layouts.items():
            response.accepted.add(slots=layout.spaces.slots, spaces_hash=spaces_hash, obs_size=layout.spaces.obs_size)
        for head in self.spaces.action.heads:
            response.heads.add(name=head.name, choices=head.choices)
        return response

    def layout(self, spaces_hash: str) -> MessageLayout:
        """Return the message layout of these spaces. Raises `Refusal` if the model does not accept them."""
        if spaces_hash not in self.layouts:
            raise Refusal(
                Reason.SPACES_MISMATCH,
                f"the model does not accept spaces {spaces_hash[:32]!r}; its own are {self.spaces.hash}: GetModel "
                f"lists the accepted spaces (server: {installed()})",
            )
        return self.layouts[spaces_hash]


def _architecture(weights: WeightSet) -> str:
    return architecture_hash(spaces_of(weights), config_of(weights))
