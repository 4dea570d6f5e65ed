"""Configuration of Gymnasium environments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from actors.config.checks import require


@dataclass(frozen=True)
class GymConfig:
    """A Gymnasium environment to train on instead of the seed-training environment; disabled if `id` is empty."""

    id: str = ""
    """Registered id, such as CartPole-v1, or mypkg:MyEnv-v0 to import mypkg first. If empty, the seed-training
    environment is used."""
    kwargs: tuple[str, ...] = ()
    """Arguments of `gymnasium.make` as name=value. Values are parsed as JSON; invalid JSON is a string."""
    wrappers: tuple[str, ...] = ()
    """Wrappers of each environment, innermost first, as module:Class. Not supported with vectorization own."""
    vectorization: Literal["sync", "async", "own"] = "sync"
    """Environments in one process, in one process each, or vectorized by the environment's own entry point."""
    squash: bool = False
    """Squash continuous actions to their bounds by tanh, instead of clipping them there. All bounds must be finite."""
    max_segment_steps: int = 1024
    """Steps after which a running episode is shipped as a segment, bootstrapped, and continued in the next segment."""

    def __post_init__(self) -> None:
        for pair in self.kwargs:
            require("=" in pair, f"gym.kwargs holds {pair!r}: write name=value")
        for wrapper in self.wrappers:
            require(":" in wrapper, f"gym.wrappers holds {wrapper!r}: write module:Class")
        require(
            not self.wrappers or self.vectorization != "own",
            "gym.wrappers apply to single environments, which gym.vectorization own does not have: use sync or async",
        )
        require(
            self.max_segment_steps >= 1, f"gym.max_segment_steps is {self.max_segment_steps}: it must be at least 1"
        )
