"""`ExternalConfig`: settings of the endpoint at which environments outside of a run play."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from actors.config import require


@dataclass(frozen=True)
class ExternalConfig:
    """Environments that are programs of their own, anywhere and in any language, which play at an endpoint of the run;
    disabled if `spaces` is empty."""

    spaces: str = ""
    """JSON file with the spaces of the environment: `{"observation_size": 4, "actions": [2]}`, or the output of
    `Spaces.to_json`."""
    listen: str = "127.0.0.1:50051"
    """Address of the endpoint: host:port or unix:/path. Another address than loopback needs TLS and a token file."""
    token_file: str = ""
    """File of bearer tokens. Sessions of tokens with the scope `train` are learned from, those of others are only
    served. Without a file, every client may train."""
    tls_cert: str = ""
    """TLS certificate chain of the endpoint (PEM)."""
    tls_key: str = ""
    """Private key of the certificate (PEM)."""
    max_sessions: int = 1000
    """Maximum number of open sessions."""
    session_timeout_s: float = 60.0
    """Seconds without a step after which a session counts as disappeared."""
    disconnected: Literal["bootstrap", "drop"] = "bootstrap"
    """What becomes of the unfinished episode of a session that disappears: it is cut before its last step, whose reward
    is unknown, and bootstrapped with the value there; or its current segment is dropped. Both are counted."""
    weights: Literal["episode", "step"] = "episode"
    """Weights of a training session: those that were the newest when its episode, or the segment of a long one, began,
    until they are too old to learn from; or the newest at each step."""
    max_segment_steps: int = 1024
    """Steps after which a running episode is shipped as a segment, bootstrapped, and continued in the next segment."""
    max_reward: float = 1e6
    """Largest magnitude of a reward; others are refused."""
    max_observation: float = 1e6
    """Largest magnitude of an entry of an observation; others are refused."""

    def __post_init__(self) -> None:
        require(self.max_sessions >= 1, f"external.max_sessions is {self.max_sessions}: it must be at least 1")
        require(
            self.session_timeout_s > 0,
            f"external.session_timeout_s is {self.session_timeout_s}: it must be positive",
        )
        require(
            self.max_segment_steps >= 1,
            f"external.max_segment_steps is {self.max_segment_steps}: it must be at least 1",
        )
        for name in ("max_reward", "max_observation"):
            value = getattr(self, name)
            require(0 < value <= 1e30, f"external.{name} is {value}: give a positive number of at most 1e30")
