"""`SmallQueue`: a queue that keeps less than those of runs."""

from __future__ import annotations

from dataclasses import dataclass

from actors.config import QueueConfig


@dataclass(frozen=True)
class SmallQueue(QueueConfig):
    """The constants of `QueueConfig` as fields."""

    payload_ttl_s: float = QueueConfig.payload_ttl_s
    weights_kept: int = QueueConfig.weights_kept
    dead_letters_kept: int = QueueConfig.dead_letters_kept
