"""`ModelVersions`: the newest weights, and older versions that are still in use."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import torch

from actors.config import EnvConfig, PolicyConfig
from actors.errors import UserError
from actors.policy.acting.programs import Program, TracedPolicy, make_program
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import config_of, from_weights, spaces_of
from actors.policy.state import StateSizes
from actors.rules.names import rule_policy
from actors.rules.program import RuleProgram
from actors.serving.messages import MAX_SLOTS, MessageLayout
from actors.serving.refusal import Reason, Refusal
from actors.slots.spaces import seed_spaces
from actors.types.spaces import Spaces
from actors.types.weights import WeightSet
from actors.version import installed

if TYPE_CHECKING:
    from actors.policy.acting.kernel_step import KernelStep


class ServedModel:
    """One version of the weights, with a program for each number of slots in use."""

    def __init__(
        self,
        weights: WeightSet,
        device: torch.device,
        previous: ServedModel | None = None,
        recycled: ServedModel | None = None,
    ) -> None:
        """Prepare programs for the same numbers of slots as `previous`. The traced programs of `recycled`, a model that
        is no longer used, are loaded with the new weights instead of being compiled again."""
        self.version, self.generation = weights.version, weights.generation
        self.state_stride, self.burn_in, self.config = weights.state_stride, weights.burn_in, config_of(weights)
        self._weights, self._device, self._lock = weights, device, threading.Lock()
        self._programs: dict[int, KernelStep | TracedPolicy] = {}
        available = recycled._programs if recycled else {}
        for slots, programs in dict(previous._programs if previous else {}).items():
            network = self._network(slots)
            if slots in available:
                self._programs[slots] = available.pop(slots)
                self._programs[slots].load(network)
            else:
                self._programs[slots] = programs.of(network)

    @property
    def recorded_version(self) -> int:
        """The version that an episode records, see `RecordedStep.version`."""
        return self.version

    def prepare(self, spaces: Spaces) -> None:
        """Make the program for these spaces, unless it exists. Takes up to tenths of a second."""
        with self._lock:
            if spaces.slots not in self._programs:
                self._programs[spaces.slots] = make_program(self._network(spaces.slots))

    def ready(self, spaces: Spaces) -> bool:
        """Whether the program for these spaces exists."""
        return spaces.slots in self._programs

    def programs(self, spaces: Spaces) -> Program:
        """Return the program for these spaces, made if necessary."""
        if not self.ready(spaces):
            self.prepare(spaces)
        return self._programs[spaces.slots]

    def _network(self, slots: int) -> FactoredRecurrentActorCritic:
        spaces = spaces_of(self._weights)
        return from_weights(self._weights, self._device, spaces.with_slots(slots) if spaces.slots else spaces)


class ServedRule(ServedModel):
    """A rule by name, which needs no weights and never has a newer version."""

    def __init__(self, name: str) -> None:
        """Raise `ConfigError` for a name that is no rule."""
        self.name, self.version, self.generation = name, 0, 0
        self.state_stride, self.burn_in, self.config = 1, 0, PolicyConfig()
        self.spaces = seed_spaces(EnvConfig().total_slots)
        self.state_sizes = rule_policy(name, self.spaces).state_sizes
        self._rules: dict[int, RuleProgram] = {}  # by number of slots

    def prepare(self, spaces: Spaces) -> None:
        """Do nothing; a rule is not compiled."""

    @property
    def recorded_version(self) -> int:
        return -1

    def ready(self, spaces: Spaces) -> bool:
        return True

    def programs(self, spaces: Spaces) -> Program:
        if spaces.slots not in self._rules:
            self._rules[spaces.slots] = RuleProgram(rule_policy(self.name, spaces))
        return self._rules[spaces.slots]


class ModelVersions:
    """The newest version, and older ones that are still in use; see `VersionPins`."""

    def __init__(self, source: WeightSet | ServedRule, device: torch.device) -> None:
        self.device = device
        self.newest: ServedModel
        self.state_sizes: StateSizes
        if isinstance(source, ServedRule):
            self.newest, self.spaces, self.state_sizes = source, source.spaces, source.state_sizes
            self.architecture, any_slots = source.name, True
        else:
            self.newest, self.spaces = ServedModel(source, device), spaces_of(source)
            self.newest.prepare(self.spaces)
            network = self.newest._network(self.spaces.slots)
            self.state_sizes = network.core.sizes
            self.architecture = _architecture(source)
            any_slots = self.spaces.slots > 0 and network.config.encoder == "slots"
        self._recyclable: list[ServedModel] = []  # no longer used; their programs can be loaded with other weights
        self.held = [self.newest]  # in the order in which they were adopted
        family = [self.spaces.with_slots(s) for s in range(1, MAX_SLOTS + 1)] if any_slots else [self.spaces]
        self.layouts = {spaces.hash: MessageLayout(spaces) for spaces in family}

    def build(self, weights: WeightSet) -> ServedModel:
        """Build a model for `adopt`. This is slow, so run it in a thread. Raises `UserError` if the weights are of
        another architecture."""
        if _architecture(weights) != self.architecture:
            raise UserError(
                f"weights {weights.version} have another architecture than those served: start another server for them"
            )
        recycled = self._recyclable.pop() if self._recyclable else None
        return ServedModel(weights, self.device, self.newest, recycled)

    def adopt(self, model: ServedModel) -> None:
        """Make `model` the newest version."""
        self.newest = model
        self.held.append(model)

    def release(self, model: ServedModel) -> None:
        """Let go of a version that is no longer used, unless it is the newest."""
        if model is not self.newest:
            self.held.remove(model)
            self._recyclable.append(model)

    def find(self, version: int) -> ServedModel | None:
        """Return the version if it is held."""
        return next((model for model in reversed(self.held) if model.version == version), None)

    def layout(self, spaces_hash: str) -> MessageLayout:
        """Return the message layout of these spaces. Raises `Refusal` if the model does not accept them."""
        if spaces_hash not in self.layouts:
            raise Refusal(
                Reason.SPACES_MISMATCH,
                f"the model does not accept spaces {spaces_hash[:32]!r}; its own are {self.spaces.hash}: GetModel "
                f"lists the accepted spaces (server: {installed()})",
                expected=self.spaces.hash,
            )
        return self.layouts[spaces_hash]


def _architecture(weights: WeightSet) -> str:
    return str(json.loads(weights.architecture)["hash"])
