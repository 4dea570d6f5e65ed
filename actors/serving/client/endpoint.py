"""`Endpoint`: the addresses and credentials with which a client connects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from actors.errors import UserError
from actors.serving.options import KEEPALIVE_S, client_channel_options
from actors.text_file import as_utf8
from actors.wire import policy_pb2

_PATH = f"/{policy_pb2.DESCRIPTOR.services_by_name['PolicyService'].full_name}/"
METHODS = {
    method.name: (
        _PATH + method.name,
        getattr(policy_pb2, method.input_type.name).SerializeToString,
        getattr(policy_pb2, method.output_type.name).FromString,
    )
    for method in policy_pb2.DESCRIPTOR.services_by_name["PolicyService"].methods
}
"""Method name -> (path, request serializer, response parser), the arguments of `grpc.Channel.unary_unary`."""


@dataclass(frozen=True)
class Endpoint:
    """Addresses of one or more replicas, and credentials. TLS is used if `tls`, `root_certificates` or `client_cert` is
    set."""

    targets: tuple[str, ...]
    token: str = ""
    token_file: Path | None = None
    tls: bool = False
    root_certificates: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    keepalive_s: float = KEEPALIVE_S

    @classmethod
    def parse(cls, target: str | Sequence[str], **options: Any) -> Endpoint:
        """Build an endpoint from host:port, a comma-separated string of them, or a sequence. Raises `UserError`."""
        given = target.split(",") if isinstance(target, str) else list(target)
        targets = tuple(t.strip() for t in given if t.strip())
        if not targets:
            raise UserError("no address of a policy server: give host:port")
        paths = ("token_file", "root_certificates", "client_cert", "client_key")
        fields: dict[str, Any] = {k: Path(v) if k in paths and v is not None else v for k, v in options.items()}
        return cls(targets, **fields)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a call. The token file is read each time, as the token may be replaced. Raises
        `UserError`."""
        token = _first_token(self.token_file) if self.token_file is not None else self.token
        return (("authorization", f"Bearer {token}"),) if token else ()

    def channel(self, index: int) -> grpc.Channel:
        target = self.targets[index]
        credentials, options = self._credentials(), client_channel_options(target, self.keepalive_s)
        if credentials is None:
            return grpc.insecure_channel(target, options)
        return grpc.secure_channel(target, credentials, options)

    def aio_channel(self, index: int) -> grpc.aio.Channel:
        target = self.targets[index]
        credentials, options = self._credentials(), client_channel_options(target, self.keepalive_s)
        if credentials is None:
            return grpc.aio.insecure_channel(target, options)
        return grpc.aio.secure_channel(target, credentials, options)

    def _credentials(self) -> grpc.ChannelCredentials | None:
        if not (self.tls or self.root_certificates or self.client_cert):
            return None
        parts = [p.read_bytes() if p else None for p in (self.root_certificates, self.client_key, self.client_cert)]
        return grpc.ssl_channel_credentials(*parts)


def _first_token(path: Path) -> str:
    """Return the first token of a file, which may be that of the server, with comments. Raises `UserError`."""
    try:
        text = as_utf8(path.read_bytes()).decode(errors="replace")
    except OSError as error:
        raise UserError(f"cannot read the token file {path} ({error.strerror})") from error
    words = [word for line in text.splitlines() for word in line.partition("#")[0].split()[:1]]
    if not words or not words[0].isascii():
        raise UserError(f"{path} does not begin with a token: write one of ASCII characters into its first line")
    return words[0]
