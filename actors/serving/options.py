"""How a server is run, and the settings of gRPC that server and clients must agree upon."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from actors.config import ConfigError, require

MAX_MESSAGE_BYTES = 1 << 20
KEEPALIVE_S = 60.0  # a client's; a server refuses pings that come twice as often

ChannelOptions = list[tuple[str, int | str]]


@dataclass(frozen=True)
class ServeOptions:
    """Everything but what is served."""

    listen: str = "127.0.0.1:50051"
    """host:port, or unix:/path. Port 0 takes a free one."""
    max_sessions: int = 10_000
    """Sessions at a time; their memory is set aside at the start."""
    token_share: float = 0.25
    """Largest share of the sessions, and of the calls at a time, that one token may hold."""
    evict_after_s: float = 3.0
    """A session without a step for so long may give way to a new one where its token's share is used up."""
    session_ttl_s: float = 3600.0
    """A session without a step for so long expires."""
    first_step_ttl_s: float = 300.0
    """The same before its first step."""
    max_batch: int = 256
    """Steps in one forward pass."""
    max_wait_ms: float = 3.0
    """Longest time that a step waits for others to share its pass."""
    max_versions: int = 8
    """Versions of the weights that are held while sessions are pinned to them."""
    poll_s: float = 1.0
    """Time between two looks for new weights."""
    device: str = "cpu"
    """Where the policy runs: cpu, cuda or auto (cuda where present)."""
    tls_cert: Path | None = None
    """Certificate chain of the server, PEM."""
    tls_key: Path | None = None
    """Its private key, PEM."""
    tls_client_ca: Path | None = None
    """Clients must show a certificate of this authority, PEM (mTLS)."""
    token_file: Path | None = None
    """Bearer tokens, one a line, an optional time of expiry (ISO 8601) after a space; read again when it changes."""
    state_key_file: Path | None = None
    """Signs exported sessions; replicas share it. Without it they are good for this process only."""
    insecure: bool = False
    """Listen beyond this machine without TLS or tokens."""
    metrics_port: int | None = None
    """Prometheus metrics, on the host of `listen` (127.0.0.1 with unix:); they ask for no token."""
    max_connection_age_s: float = 1800.0
    """Clients are asked to connect anew after so long."""
    max_connection_age_grace_s: float = 60.0
    """What is left to their calls then."""
    handshake_timeout_s: float = 10.0
    """A connection that has not introduced itself by then is closed."""
    request_timeout_s: float = 10.0
    """A call whose request has not come by then is ended."""
    idle_timeout_s: float = 300.0
    """Streams without a request, and connections without a call, are closed after so long."""
    max_message_bytes: int = MAX_MESSAGE_BYTES
    """Largest request."""
    max_concurrent_calls: int = 4096
    """Calls at a time; those beyond are refused. Health checks do not count."""
    max_connection_streams: int = 100
    """Calls at a time on one connection; clients hold back those beyond."""
    keepalive_s: float = KEEPALIVE_S
    """How often an idle connection is probed."""
    drain_s: float = 20.0
    """Longest time that calls under way get to finish after SIGTERM."""
    reflection: bool = True
    """Whether the server describes its services to tools."""

    def __post_init__(self) -> None:
        for name in ("max_sessions", "max_batch", "max_versions", "max_concurrent_calls", "max_connection_streams"):
            require(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}: at least 1")
        for name in (
            "session_ttl_s",
            "first_step_ttl_s",
            "poll_s",
            "max_connection_age_s",
            "max_connection_age_grace_s",
            "handshake_timeout_s",
            "request_timeout_s",
            "idle_timeout_s",
            "keepalive_s",
        ):
            require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}: it must be positive")
        require(0 <= self.max_wait_ms <= 100, f"max_wait_ms is {self.max_wait_ms}: 0 to 100")
        require(0 < self.token_share <= 1, f"token_share is {self.token_share}: above 0, up to 1")
        require(self.evict_after_s >= 0, f"evict_after_s is {self.evict_after_s}: it cannot be negative")
        require(self.drain_s >= 0, f"drain_s is {self.drain_s}: it cannot be negative")
        require(1024 <= self.max_message_bytes <= 1 << 28, "max_message_bytes lies between 1 KiB and 256 MiB")
        require(
            (self.tls_cert is None) == (self.tls_key is None),
            "TLS needs both a certificate and its key: give tls_cert and tls_key",
        )
        require(self.tls_client_ca is None or self.tls_cert is not None, "tls_client_ca needs tls_cert and tls_key")
        if not self.insecure and not self.is_local:
            missing = [
                flag for flag, given in (("--tls-cert and --tls-key", self.tls_cert), ("--token-file", self.token_file))
                if given is None
            ]  # fmt: skip
            if missing:
                raise ConfigError(
                    f"{self.listen} is reached from other machines: give {', '.join(missing)}, listen on 127.0.0.1, "
                    "or spell out --insecure"
                )

    @property
    def sessions_per_token(self) -> int:
        return max(1, int(self.token_share * self.max_sessions))

    @property
    def calls_per_token(self) -> int:
        return max(1, int(self.token_share * self.max_concurrent_calls))

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        if self.listen.startswith("unix:"):
            return True
        host = self.host
        if host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    @property
    def host(self) -> str:
        if self.listen.startswith("unix:"):
            return "127.0.0.1"
        host, colon, port = self.listen.rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535:
            raise ConfigError(f"listen is {self.listen!r}: give host:port, as in 127.0.0.1:50051")
        return host.strip("[]")


def server_channel_options(options: ServeOptions) -> ChannelOptions:
    return [
        ("grpc.max_receive_message_length", options.max_message_bytes),
        ("grpc.max_send_message_length", options.max_message_bytes),
        ("grpc.max_metadata_size", 16 * 1024),
        ("grpc.max_connection_age_ms", _ms(options.max_connection_age_s)),
        ("grpc.max_connection_age_grace_ms", _ms(options.max_connection_age_grace_s)),
        ("grpc.keepalive_time_ms", _ms(options.keepalive_s)),
        ("grpc.keepalive_timeout_ms", _ms(min(20.0, options.keepalive_s))),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _ms(options.keepalive_s / 2)),
        ("grpc.http2.max_ping_strikes", 2),
        ("grpc.server_handshake_timeout_ms", _ms(options.handshake_timeout_s)),
        ("grpc.max_concurrent_streams", options.max_connection_streams),
        # It counts calls that are answered but not yet forgotten, and so refuses a client that keeps to the limit.
        ("grpc.http.overload_protection", 0),
        ("grpc.max_connection_idle_ms", _ms(options.idle_timeout_s)),
        ("grpc.so_reuseport", 0),
    ]


def client_channel_options(keepalive_s: float = KEEPALIVE_S) -> ChannelOptions:
    return [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", _ms(keepalive_s)),
        ("grpc.keepalive_timeout_ms", _ms(min(20.0, keepalive_s))),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
        ("grpc.enable_retries", 0),  # a client's own retries know what it has asked before
    ]


def _ms(seconds: float) -> int:
    return max(1, round(1000 * seconds))
