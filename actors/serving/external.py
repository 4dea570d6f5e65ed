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
    """JSON file with the spaces of the environment. `{"observation_size": 4, "actions": [2]}`, or the output of
    `Spaces.to_json`; it selects external environments."""
    listen: str = "127.0.0.1:50051"
    """Address of the endpoint: host:port or unix:/path. Another address than loopback, for programs elsewhere, needs
    TLS and a token file."""
    token_file: str = ""
    """File of bearer tokens. Sessions of tokens with the scope `train` are learned from, those of others are only
    served. Without a file, every client may train."""
    tls_cert: str = ""
    """TLS certificate chain of the endpoint (PEM). For addresses beyond loopback."""
    tls_key: str = ""
    """Private key of the certificate (PEM). Beside `tls_cert`."""
    session_timeout_s: float = 60.0
    """Seconds without a step after which a session counts as disappeared. Raise it for slow programs."""
    disconnected: Literal["bootstrap", "drop"] = "bootstrap"
    """What becomes of the unfinished episode of a session that disappears. It is cut before its last step, whose reward
    is unknown, and bootstrapped with the value there; or its current segment is dropped, for environments where
    disconnecting has a reason. Both are counted."""
    max_segment_steps: int = 256
    """Steps after which a running episode is shipped as a segment. It is bootstrapped, and continued in the next
    segment, with the newest weights. Raise it for long dependencies."""

    def __post_init__(self) -> None:
        require_least(self, "external", 1, "max_segment_steps")
        require_positive(self, "external", "session_timeout_s")
