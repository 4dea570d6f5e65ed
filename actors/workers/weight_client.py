"""`WeightClient`: the newest published weights for one who acts, damaged ones left out."""

from __future__ import annotations

import logging

from actors.codec import InvalidWeights
from actors.transport.base import WeightStore
from actors.types.weights import WeightSet

log = logging.getLogger(__name__)


class WeightClient:
    """Whoever acts goes on with the weights it has. `damaged` counts the fetches whose checksum was wrong."""

    def __init__(self, store: WeightStore) -> None:
        self.store = store
        self.damaged = 0

    def newest(self, newer_than: int) -> WeightSet | None:
        """Weights newer than that; None where there are none, or none that can be trusted."""
        try:
            return self.store.fetch(newer_than)
        except InvalidWeights as error:
            self.damaged += 1
            log.warning("%s; going on with version %d", error, newer_than)
            return None
