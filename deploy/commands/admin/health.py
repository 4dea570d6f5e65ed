"""`tamiyo health`: check services, for health checks of containers.

These run every few seconds, so `python -m deploy.commands.admin.health` does the same and imports little more than it
needs.
"""

from __future__ import annotations

import http.client
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from actors.errors import UserError
from deploy.config.parser import CommandParser


def main(args: Sequence[str]) -> int:
    """Print a line for each address. Returns 0 if all are healthy, else 1. Raises `UserError`."""
    parser = CommandParser("health", "Check service health. Exits with 1 if a service is not healthy.")
    add = parser.add_argument
    kinds = (
        "http://HOST:PORT/PATH must return status 200; grpc://HOST:PORT or grpcs://HOST:PORT must report SERVING "
        "(default: the addresses in TAMIYO_HEALTH)"
    )
    addresses, ca = os.environ.get("TAMIYO_HEALTH", "").split(), os.environ.get("TAMIYO_HEALTH_CA")
    add("addresses", nargs="*", default=addresses, metavar="ADDRESS", help=kinds)
    trusted = "trusted certificate for grpcs:// addresses, PEM (default: the file in TAMIYO_HEALTH_CA)"
    add("--ca", type=Path, default=ca, metavar="FILE", help=trusted)
    add("--name", default="", help="host name in the certificates of grpcs:// addresses (default: that of the address)")
    add("--timeout", type=float, default=3.0, metavar="S", help="seconds to wait for each service (default: 3)")
    options = parser.parse_args(args)
    if not options.addresses:
        raise UserError("no address given: pass one or set TAMIYO_HEALTH; see `tamiyo health --help`")
    failures = {a: failure_reason(a, options.ca, options.timeout, options.name) for a in options.addresses}
    for address, reason in failures.items():
        print(f"{address}: {reason or 'healthy'}")
    return int(any(failures.values()))


def failure_reason(address: str, ca: Path | None, timeout_s: float, name: str = "") -> str:
    """Return why the service is not healthy, or "" if it is. Raises `UserError` for a malformed address."""
    url = urlsplit(address)
    if url.scheme not in ("http", "grpc", "grpcs") or url.hostname is None or url.port is None:
        raise UserError(f"{address!r} is not a valid address: give http://HOST:PORT/PATH or grpc(s)://HOST:PORT")
    return _http(url, timeout_s) if url.scheme == "http" else _grpc(url, ca, timeout_s, name)


def _http(url: SplitResult, timeout_s: float) -> str:
    assert url.hostname is not None
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=timeout_s)
    try:
        connection.request("GET", url.path or "/")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"does not answer ({error})"
    finally:
        connection.close()
    return "" if status == 200 else f"returned status {status}"


def _grpc(url: SplitResult, ca: Path | None, timeout_s: float, name: str) -> str:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    trusted, target = _read_certificate(ca), f"{url.hostname}:{url.port}"
    options: list[tuple[str, Any]] = [("grpc.enable_http_proxy", 0)]  # as for http://
    options += [("grpc.ssl_target_name_override", name)] if name else []
    if url.scheme == "grpcs":
        channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(trusted), options)
    else:
        channel = grpc.insecure_channel(target, options)
    with channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=timeout_s, wait_for_ready=False
            )
        except grpc.RpcError as error:
            if _read_certificate(ca) != trusted:  # it was replaced during the check
                return _grpc(url, ca, timeout_s, name)
            return f"does not answer ({error.code().name}: {error.details()})"
    name = str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))
    return "" if name == "SERVING" else f"reports {name}"


def _read_certificate(ca: Path | None) -> bytes | None:
    try:
        return None if ca is None else ca.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the certificate ({error}): give --ca a readable file") from error


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        sys.exit(f"tamiyo: error: {error}")
