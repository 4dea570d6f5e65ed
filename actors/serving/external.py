"""`ExternalConfig`: settings of the endpoint at which environments outside of a run play."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from actors.config import require_least, require_positive


@dataclass(frozen=True)
class ExternalConfig:
    """Environments that are programs of their own, anywhere and in any language, which play at an endpoint of the run;
    disabled if `spaces` is empty."""

    spaces: str = ""
    """JSON of the spaces, `{"observation_size": 4, "actions": [2]}` or `Spaces.to_json`. For environments
    that are programs of their own."""
    listen: str = "127.0.0.1:50051"
    """Endpoint, host:port or unix:/path. For clients elsewhere; beyond loopback it needs TLS and a token file."""
    token_file: str = ""
    """Bearer tokens; those with scope `train` are learned from. For endpoints that others reach; empty: every
    client may train."""
    tls_cert: str = ""
    """TLS certificate chain (PEM). For addresses beyond loopback."""
    tls_key: str = ""
    """Its private key (PEM), beside it."""
    session_timeout_s: float = 60.0
    """Seconds without a step after which a session has disappeared. Raise for slow programs."""
    disconnected: Literal["bootstrap", "drop"] = "bootstrap"
    """Its unfinished episode is cut and bootstrapped, or its segment dropped, where disconnecting has a reason."""
    max_segment_steps: int = 256
    """As `gym.max_segment_steps`, for long episodes; the next segment has the newest weights."""

    def __post_init__(self) -> None:
        require_least(self, "external", 1, "max_segment_steps")
        require_positive(self, "external", "session_timeout_s")
