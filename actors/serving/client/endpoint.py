"""Where a policy is served, and how a client may enter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from actors.errors import UserError
from actors.serving.options import KEEPALIVE_S, client_channel_options
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
"""(path, serialise, parse) by the method's name."""


@dataclass(frozen=True)
class Endpoint:
    """One address or several replicas', tried in turn; TLS where `root_certificates` or `tls` says so."""

    targets: tuple[str, ...]
    token: str = ""
    token_file: Path | None = None
    tls: bool = False
    root_certificates: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    keepalive_s: float = KEEPALIVE_S

    @classmethod
    def of(cls, target: str | Sequence[str], **more: Any) -> Endpoint:
        """`target` is host:port, some of them, or several in one text with commas between."""
        targets = target.split(",") if isinstance(target, str) else list(target)
        found = tuple(t.strip() for t in targets if t.strip())
        if not found:
            raise UserError("give the address of a policy server, host:port")
        paths = ("token_file", "root_certificates", "client_cert", "client_key")
        fields: dict[str, Any] = {k: Path(v) if k in paths and v is not None else v for k, v in more.items()}
        return cls(found, **fields)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Of every call; a token file is read each time, so that a new token needs no new client."""
        token = self.token_file.read_text().split()[0] if self.token_file is not None else self.token
        return (("authorization", f"Bearer {token}"),) if token else ()

    def channel(self, index: int) -> grpc.Channel:
        target, options = self.targets[index], client_channel_options(self.keepalive_s)
        credentials = self._credentials()
        if credentials is None:
            return grpc.insecure_channel(target, options)
        return grpc.secure_channel(target, credentials, options)

    def aio_channel(self, index: int) -> grpc.aio.Channel:
        target, options = self.targets[index], client_channel_options(self.keepalive_s)
        credentials = self._credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(target, options)
        return grpc.aio.secure_channel(target, credentials, options)

    def _credentials(self) -> grpc.ChannelCredentials | None:
        if not (self.tls or self.root_certificates or self.client_cert):
            return None
        parts = [p.read_bytes() if p else None for p in (self.root_certificates, self.client_key, self.client_cert)]
        return grpc.ssl_channel_credentials(*parts)
