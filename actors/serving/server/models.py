"""Weights that are served: the newest, and those that sessions still hold on to."""

from __future__ import annotations

import json
import threading

import torch

from actors.errors import UserError
from actors.policy.acting.programs import TracedPolicy
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import from_weights, spaces_of
from actors.policy.state import StateSizes
from actors.serving.messages import MAX_SLOTS, MessageLayout
from actors.serving.refusal import Reason, Refusal
from actors.types.spaces import Spaces
from actors.types.weights import WeightSet


class ServedModel:
    """One version; a program for each number of slots that sessions ask for."""

    def __init__(
        self,
        weights: WeightSet,
        device: torch.device,
        before: ServedModel | None = None,
        spare: ServedModel | None = None,
    ) -> None:
        """`before` says for which slots programs are wanted; those of `spare`, which nobody asks any more, are used."""
        self.version, self.generation = weights.version, weights.generation
        self.sessions = 0
        self._weights, self._device, self._lock = weights, device, threading.Lock()
        self._programs: dict[int, TracedPolicy] = {}
        spares = spare._programs if spare else {}
        for slots, programs in dict(before._programs if before else {}).items():
            network = self._network(slots)
            if slots in spares:
                self._programs[slots] = spares.pop(slots)
                self._programs[slots].load(network)
            else:
                self._programs[slots] = programs.of(network)

    def prepare(self, spaces: Spaces) -> None:
        """Make the program for these spaces; takes tenths of a second the first time."""
        with self._lock:
            if spaces.slots not in self._programs:
                self._programs[spaces.slots] = TracedPolicy(self._network(spaces.slots)).prepare()

    def ready(self, spaces: Spaces) -> bool:
        return spaces.slots in self._programs

    def programs(self, spaces: Spaces) -> TracedPolicy:
        if not self.ready(spaces):
            self.prepare(spaces)
        return self._programs[spaces.slots]

    def _network(self, slots: int) -> FactoredRecurrentActorCritic:
        own = spaces_of(self._weights)
        return from_weights(self._weights, self._device, own.with_slots(slots) if own.slots else own)


class Models:
    """The newest version and, up to `max_versions`, the older ones that sessions are pinned to.

    A version beyond that bound waits: no session loses the weights it was promised.
    """

    def __init__(self, weights: WeightSet, device: torch.device, max_versions: int) -> None:
        self.spaces, self.device, self.max_versions = spaces_of(weights), device, max_versions
        self.architecture = _architecture(weights)
        self.newest = ServedModel(weights, device)
        self.newest.prepare(self.spaces)
        self._spare: list[ServedModel] = []  # forgotten, whose programs can take on other weights
        self.held: dict[int, ServedModel] = {self.newest.version: self.newest}
        network = self.newest._network(self.spaces.slots)
        self.state_sizes: StateSizes = network.core.sizes
        any_slots = self.spaces.slots and network.config.encoder == "slots"
        family = [self.spaces.with_slots(s) for s in range(1, MAX_SLOTS + 1)] if any_slots else [self.spaces]
        self.layouts = {spaces.hash: MessageLayout(spaces) for spaces in family}

    def build(self, weights: WeightSet) -> ServedModel:
        """Ready to be adopted; slow, for a thread. Raises `UserError` where the weights are of another architecture."""
        if _architecture(weights) != self.architecture:
            raise UserError(
                f"weights {weights.version} have another architecture than those served: start a server for them"
            )
        spare = self._spare.pop() if self._spare else None
        return ServedModel(weights, self.device, self.newest, spare)

    def full(self) -> bool:
        """Whether every version that may be held is in use."""
        return len(self.held) - (self.newest.sessions == 0) >= self.max_versions

    def adopt(self, model: ServedModel) -> None:
        before, self.newest = self.newest, model
        self.held[model.version] = model
        self._forget(before)

    def layout(self, spaces_hash: str) -> MessageLayout:
        if spaces_hash not in self.layouts:
            raise Refusal(
                Reason.SPACES_MISMATCH,
                f"spaces {spaces_hash[:32]!r} do not fit the model, which has {self.spaces.hash}: GetModel tells all",
                expected=self.spaces.hash,
            )
        return self.layouts[spaces_hash]

    def hold(self, model: ServedModel) -> ServedModel:
        model.sessions += 1
        return model

    def release(self, model: ServedModel) -> None:
        model.sessions -= 1
        self._forget(model)

    def _forget(self, model: ServedModel) -> None:
        unused = model is not self.newest and not model.sessions
        if unused and self.held.pop(model.version, None) is not None:
            self._spare.append(model)


def _architecture(weights: WeightSet) -> str:
    return str(json.loads(weights.architecture)["hash"])
