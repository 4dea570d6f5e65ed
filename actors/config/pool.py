"""Configuration of actors and of the queue that they ship episodes through."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from actors.config.checks import require, require_least, require_positive
from actors.config.env import EnvConfig
from actors.config.gym import GymConfig
from actors.config.policy import PolicyConfig

BUFFER_STEPS = 16384
"""Steps of unsent episodes that an actor keeps while the queue is busy. When the buffer is full, the oldest is dropped
and counted."""


@dataclass(frozen=True)
class ActorsConfig:
    """The pool of actors."""

    count: int | Literal["auto"] = 2
    """Actor processes. As many as there are CPUs; a number grows a cluster, auto takes free ones."""
    max_count: int = 64
    """Most with `count: auto`, or fewer if their episodes would be stale. For shared clusters."""
    envs_per_actor: int = 8
    """Environments stepped together. More are faster, fewer give fresher episodes."""
    gpus_per_actor: float = 0.0
    """GPUs an actor reserves, or a share. For CNN hosts and simulators; with 0 it sees none."""
    hang_s: float = 300.0
    """Seconds without a step, or 190 s of reaching the server, until an actor is restarted. Raise for slow
    environments."""

    def __post_init__(self) -> None:
        require(self.at_least >= 1, f"actors.count is {self.count}: it must be at least 1")
        require_least(self, "actors", 1, "max_count", "envs_per_actor")
        require(
            64 * self.envs_per_actor <= BUFFER_STEPS,
            f"actors.envs_per_actor is {self.envs_per_actor}: the buffer of an actor holds 64 steps of each of at most "
            f"{BUFFER_STEPS // 64} environments; use more actors",
        )
        require_positive(self, "actors", "hang_s")
        require(
            0 <= self.gpus_per_actor < 1 or (self.gpus_per_actor > 0 and float(self.gpus_per_actor).is_integer()),
            f"actors.gpus_per_actor is {self.gpus_per_actor}: give a share of one GPU, from 0 to 1, or a whole number",
        )

    @property
    def at_least(self) -> int:
        """Number of actors at the start."""
        return self.count if isinstance(self.count, int) else 1


REDIS_SCHEMES = ("redis://", "rediss://", "unix://", "redis+sentinel://")
MAX_REDIS_VALUE_BYTES = 512 * 1024 * 1024  # Redis's default limit (proto-max-bulk-len)


@dataclass(frozen=True)
class QueueConfig:
    """Limits of the episode queue and of the published weights."""

    payload_ttl_s: ClassVar[float] = 60.0  # after which a payload expires if no queue entry refers to it
    weights_kept: ClassVar[int] = 3  # versions in the store
    dead_letters_kept: ClassVar[int] = 256  # evicted ones are counted

    max_episodes: int = 256
    """Waiting episodes until more are BUSY; half a batch at least. Lower for fresher ones."""
    max_bytes: int = 256 * 1024 * 1024
    """Waiting bytes until more are BUSY. For servers with little memory."""
    max_episode_bytes: int = 16 * 1024 * 1024
    """Bytes of the largest episode; larger are dead letters. For large observations."""

    def __post_init__(self) -> None:
        require_least(self, "queue", 1, "max_episodes", "max_bytes", "max_episode_bytes")
        require(
            self.max_episode_bytes <= MAX_REDIS_VALUE_BYTES,
            f"queue.max_episode_bytes is {self.max_episode_bytes}: Redis stores at most {MAX_REDIS_VALUE_BYTES} bytes",
        )


@dataclass(frozen=True)
class ActingConfig:
    """All settings of an actor."""

    env: EnvConfig = field(default_factory=EnvConfig)
    gym: GymConfig = field(default_factory=GymConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    actors: ActorsConfig = field(default_factory=ActorsConfig)
    queue: QueueConfig = field(default_factory=QueueConfig)
    episodes_per_seed: int = 1  # in a wave of the environments of an actor
