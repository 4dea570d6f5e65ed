"""`tamiyo health`: whether services answer, for health checks of containers and their like.

Those run every few seconds: `python -m deploy.commands.health` is the same and loads little more than it needs.
"""

from __future__ import annotations

import http.client
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from actors.errors import UserError
from deploy.commands.parser import CommandParser


def main(args: Sequence[str]) -> int:
    """As `health`, of flags. Raises `UserError`."""
    parser = CommandParser("health", "Whether services answer; exits 1 where one does not.")
    known = (
        "http://HOST:PORT/PATH answers with 200; grpc://HOST:PORT or grpcs://HOST:PORT says that it serves "
        "(default: those in TAMIYO_HEALTH)"
    )
    addresses, ca = os.environ.get("TAMIYO_HEALTH", "").split(), os.environ.get("TAMIYO_HEALTH_CA")
    parser.add_argument("addresses", nargs="*", default=addresses, metavar="ADDRESS", help=known)
    trusted = "certificate that a grpcs:// server is trusted by, PEM (default: the one in TAMIYO_HEALTH_CA)"
    parser.add_argument("--ca", type=Path, default=ca, metavar="FILE", help=trusted)
    parser.add_argument("--timeout", type=float, default=3.0, metavar="S", help="seconds for each (default: 3)")
    options = parser.parse_args(args)
    if not options.addresses:
        raise UserError("give addresses to look at, here or in TAMIYO_HEALTH; see `tamiyo health --help`")
    return health(options.addresses, options.ca, options.timeout)


def health(addresses: Sequence[str], ca: Path | None, timeout_s: float) -> int:
    """Prints a line an address; returns 0 where all answer as they should, else 1."""
    faults = {address: fault(address, ca, timeout_s) for address in addresses}
    for address, reason in faults.items():
        print(f"{address}: {reason or 'healthy'}")
    return int(any(faults.values()))


def fault(address: str, ca: Path | None, timeout_s: float) -> str:
    """What is wrong with it, empty where nothing is. Raises `UserError` for an address of no known kind."""
    place = urlsplit(address)
    checks = {"http": _http, "grpc": _grpc, "grpcs": _grpc}
    if place.scheme not in checks or place.hostname is None or place.port is None:
        raise UserError(f"{address!r} is no address to look at: give http://HOST:PORT/PATH, or grpc(s)://HOST:PORT")
    return checks[place.scheme](place, ca, timeout_s)


def _http(place: SplitResult, ca: Path | None, timeout_s: float) -> str:
    assert place.hostname is not None
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=timeout_s)
    try:
        connection.request("GET", place.path or "/")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"does not answer ({error})"
    finally:
        connection.close()
    return "" if status == 200 else f"answers with status {status}"


def _grpc(place: SplitResult, ca: Path | None, timeout_s: float) -> str:
    trusted = _trusted(ca)
    while True:
        found = _grpc_once(place, trusted, timeout_s)
        before, trusted = trusted, _trusted(ca)
        if not found or trusted == before:  # else the certificate was renewed while the server was asked
            return found


def _trusted(ca: Path | None) -> bytes | None:
    try:
        return ca.read_bytes() if ca is not None else None
    except OSError as error:
        raise UserError(f"the certificate cannot be read ({error})") from error


def _grpc_once(place: SplitResult, trusted: bytes | None, timeout_s: float) -> str:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    target = f"{place.hostname}:{place.port}"
    if place.scheme == "grpcs":
        channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(trusted))
    else:
        channel = grpc.insecure_channel(target)
    with channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=timeout_s, wait_for_ready=False
            )
        except grpc.RpcError as error:
            return f"does not answer ({error.code().name}: {error.details()})"
    name = str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))
    return "" if name == "SERVING" else f"answers that it is {name}"


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        sys.exit(f"tamiyo: error: {error}")
