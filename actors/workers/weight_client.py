"""`WeightClient`: fetches the newest published weights and skips damaged ones."""

from __future__ import annotations

import logging

from actors.codec import InvalidWeights
from actors.transport.redis import Transport
from actors.types.weights import WeightSet

log = logging.getLogger(__name__)


class WeightClient:
    """Reads weights from a store. `damaged` counts the fetches that failed their checks."""

    def __init__(self, store: Transport) -> None:
        self.store = store
        self.damaged = 0

    def newest(self, known: str = "") -> WeightSet | None:
        """Return the published weights, or None if `known` is their digest, there are none, or they are damaged."""
        try:
            return self.store.fetch(known)
        except InvalidWeights as error:
            self.damaged += 1
            log.warning("%s; continuing with the weights before them", error)
            return None
