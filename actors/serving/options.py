"""Options of the policy server, and the gRPC channel options of server and clients."""

from __future__ import annotations

import ipaddress
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.request import proxy_bypass

from actors.config import ConfigError, require

MAX_MESSAGE_BYTES = 1 << 20
KEEPALIVE_S = 60.0  # ping interval of an idle connection; servers allow pings up to twice as often
CONNECTION_AGE_S = 1800.0  # after which clients are asked to reconnect
CONNECTION_GRACE_S = 60.0  # that the calls of such a connection then have to complete
IDLE_S = 300.0  # after which a connection without calls is closed
HANDSHAKE_S = 10.0  # within which a new connection must complete its handshake
CONNECTION_STREAMS = 100  # concurrent calls of a connection; clients queue further ones

ChannelOptions = list[tuple[str, int | str]]


@dataclass(frozen=True)
class ServeOptions:
    """Options of the policy server, apart from the weights that it serves."""

    listen: str = "127.0.0.1:50051"
    """Address to listen on: host:port or unix:/path. Port 0 chooses a free port."""
    workers: int = 1
    """Number of processes that share the address, each with its own sessions, connections and limits. Raise it where
    one core is too slow. Linux only."""
    max_sessions: int = 10_000
    """Maximum number of open sessions, whose recurrent state is allocated at start. Raise it for more clients."""
    session_ttl_s: float = 3600.0
    """Seconds without a step after which a session expires. Raise it for clients that pause longer."""
    max_versions: int = 8
    """Maximum number of weight versions in memory: the newest and those that sessions are pinned to. Sessions of the
    oldest move to the newest when there would be more. Lower it where large weights leave no memory for eight."""
    device: str = "cpu"
    """Device of the policy: cpu, cuda, or auto (cuda if available). A GPU pays only for a policy that is too large
    for a core: the default one was slower on an H100 at every load."""
    tls_cert: Path | None = None
    """TLS certificate chain of the server (PEM)."""
    tls_key: Path | None = None
    """Private key of the certificate (PEM)."""
    tls_client_ca: Path | None = None
    """Certificate authority (PEM) that must have signed the certificates of clients (mutual TLS)."""
    token_file: Path | None = None
    """File of bearer tokens, one per line, each with an optional expiry time (ISO 8601). Reloaded when it changes."""
    state_key_file: Path | None = None
    """File with the key that signs exported sessions, the same for all replicas. Default: a key of this process."""
    insecure: bool = False
    """Allow listening on a non-loopback address without TLS or tokens."""
    metrics_port: int | None = None
    """Port for Prometheus metrics, on the host of `listen` (127.0.0.1 for unix:). No token is required. With several
    workers, the first one's; each has the port after that of the one before it."""
    max_message_bytes: int = MAX_MESSAGE_BYTES
    """Maximum size of a request in bytes. Raise it for observations that do not fit, which a refused start names."""
    max_concurrent_calls: int = 4096
    """Maximum number of concurrent calls; further calls are refused. Health checks are not counted. Lower it where
    this many waiting requests do not fit the memory."""
    drain_s: float = 20.0
    """Seconds that calls in progress have to complete after SIGTERM: less than what stops the process allows."""

    def __post_init__(self) -> None:
        least = {"workers": 1, "max_sessions": 1, "max_versions": 1, "max_concurrent_calls": 1, "drain_s": 0}
        for name, value in least.items():
            require(getattr(self, name) >= value, f"{name} is {getattr(self, name)}: it must be at least {value}")
        if self.workers > 1:
            shares = sys.platform == "linux" and hasattr(socket, "SO_REUSEPORT")
            require(shares, f"workers is {self.workers}: only Linux spreads connections over several; leave it at 1")
            unix = self.listen.startswith("unix:")
            require(not unix, f"workers is {self.workers}: they cannot share a unix socket; listen on host:port")
        require(self.session_ttl_s > 0, f"session_ttl_s is {self.session_ttl_s}: it must be positive")
        require(
            1024 <= self.max_message_bytes <= 1 << 28,
            f"max_message_bytes is {self.max_message_bytes}: it must be between 1024 (1 KiB) and 268435456 (256 MiB)",
        )
        require(
            (self.tls_cert is None) == (self.tls_key is None),
            "TLS needs both a certificate and its key: set tls_cert and tls_key",
        )
        require(self.tls_client_ca is None or self.tls_cert is not None, "tls_client_ca requires tls_cert and tls_key")
        if not self.insecure and not _is_loopback(self.host):
            missing = [
                flag for flag, given in (("--tls-cert and --tls-key", self.tls_cert), ("--token-file", self.token_file))
                if given is None
            ]  # fmt: skip
            if missing:
                raise ConfigError(
                    f"{self.listen} is reachable from other machines: give {', '.join(missing)}, listen on 127.0.0.1, "
                    "or pass --insecure"
                )

    @property
    def host(self) -> str:
        """Host of `listen`; 127.0.0.1 for a Unix socket. Raises `ConfigError` if `listen` is malformed."""
        if self.listen.startswith("unix:"):
            return "127.0.0.1"
        host, colon, port = self.listen.rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535:
            raise ConfigError(f"listen is {self.listen!r}: give host:port, for example 127.0.0.1:50051")
        return host.strip("[]")


def server_channel_options(options: ServeOptions, max_connections: int) -> ChannelOptions:
    """Return the gRPC channel options of a server that refuses connections beyond `max_connections`."""
    return [
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.max_receive_message_length", options.max_message_bytes),
        ("grpc.max_send_message_length", options.max_message_bytes),
        ("grpc.max_metadata_size", 16 * 1024),
        ("grpc.max_connection_age_ms", _ms(CONNECTION_AGE_S)),
        ("grpc.max_connection_age_grace_ms", _ms(CONNECTION_GRACE_S)),
        ("grpc.keepalive_time_ms", _ms(KEEPALIVE_S)),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _ms(KEEPALIVE_S / 2)),
        ("grpc.http2.max_ping_strikes", 2),
        ("grpc.server_handshake_timeout_ms", _ms(HANDSHAKE_S)),
        ("grpc.max_concurrent_streams", CONNECTION_STREAMS),
        # Overload protection also counts calls that are complete but not yet cleaned up, and so refuses clients that
        # keep to max_concurrent_streams.
        ("grpc.http.overload_protection", 0),
        ("grpc.max_connection_idle_ms", _ms(IDLE_S)),
        ("grpc.so_reuseport", int(options.workers > 1)),
    ]


def client_channel_options(target: str) -> ChannelOptions:
    """Return the gRPC channel options of clients. An HTTP proxy of the environment, if there is one, does not lead to
    this machine, nor where no_proxy or NO_PROXY (which gRPC does not read) excludes it."""
    host = target.rpartition(":")[0].strip("[]")
    direct = _is_loopback(host) or target.startswith("unix:") or proxy_bypass(host)
    return [
        ("grpc.enable_http_proxy", int(not direct)),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", _ms(KEEPALIVE_S)),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
        ("grpc.enable_retries", 0),  # clients retry by themselves, with the same step index
        ("grpc.use_local_subchannel_pool", 1),  # so that clients of one process may reach different workers
    ]


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _ms(seconds: float) -> int:
    return max(1, round(1000 * seconds))
