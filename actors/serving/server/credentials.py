"""`TokenFile` and `CertificateReloader`: bearer tokens and TLS certificates, reloaded when their files change."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import NamedTuple, cast

import grpc
import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from actors.errors import UserError
from actors.sessions.refusal import Reason, Refusal
from actors.text_file import as_utf8

RELOAD_S = 1.0  # least time between two checks of the file
TRAIN_SCOPE = "train"
TOKEN_SHARE = 0.25  # of all calls or sessions, for each token while several are valid
OWNER: ContextVar[str] = ContextVar("owner", default="")
"""Hash of the token of the call in progress; "" if tokens are not used."""
Metadata = Iterable[tuple[str, str | bytes]]


class ParsedTokens(NamedTuple):
    """The contents of a token file."""

    expiries: dict[str, float]  # hash of a token -> Unix time
    malformed: list[int]  # line numbers, from 1
    trainers: set[str]  # hashes of the tokens with the scope `train`


class TokenFile:
    """The valid tokens. A line of the file is `TOKEN [EXPIRY] [train]`; `#` begins a comment. Sessions of tokens with
    the scope `train` may be trained on.

    At the start, a malformed line or an unreadable file raises `UserError`. Later, a malformed line is ignored, and
    while the file is missing or unreadable no token is valid; both are logged as errors. The owner of a call is
    identified by the hash of its token.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._checked_s = path, time.monotonic()
        self._log = structlog.get_logger("tamiyo.serving")
        try:
            self._stamp, self._known = _stamp(path), parse_tokens(path.read_bytes())
        except OSError as error:
            raise UserError(f"cannot read the token file ({error}): give --token-file a readable file") from error
        if lines := self._known.malformed:
            raise UserError(
                f"line {lines[0]} of {path} is malformed: write TOKEN [EXPIRY] [train], as in TOKEN 2030-01-31"
            )
        if not self._known.expiries:
            raise UserError(f"{path} contains no token: write one per line")

    def check(self, metadata: Metadata) -> str:
        """Return the owner of a call, the hash of its token. Raises `Refusal` if the token is not valid."""
        header = next((v for k, v in metadata if k == "authorization"), "")
        scheme, _, token = (header.decode(errors="replace") if isinstance(header, bytes) else header).partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Refusal(Reason.TOKEN_MISSING, "no token: send the metadata `authorization: Bearer TOKEN`")
        owner = _hash(token.strip())
        self.confirm(owner)
        return owner

    def confirm(self, owner: str) -> None:
        """Raise `Refusal` if this owner's token is not, or no longer, valid."""
        self.refresh()
        expiry_s = self._known.expiries.get(owner)
        if expiry_s is None:
            raise Refusal(Reason.TOKEN_INVALID, "unknown token: ask the operator of this server for one")
        if expiry_s <= time.time():
            raise Refusal(Reason.TOKEN_EXPIRED, "expired token: ask the operator of this server for a new one")

    def may_train(self, owner: str) -> bool:
        """Whether this owner's token has the scope `train`."""
        self.refresh()
        return owner in self._known.trainers

    def only_serves(self, owner: str) -> bool:
        """Whether this owner's token is in the file, without the scope `train`."""
        return not self.may_train(owner) and owner in self._known.expiries

    def share(self, limit: int) -> int | None:
        """Return how much of a limit one token may use while several are valid; None if one alone may use all."""
        self.refresh()
        now = time.time()
        valid = (expiry_s for expiry_s in self._known.expiries.values() if expiry_s > now)
        return max(1, int(TOKEN_SHARE * limit)) if len(list(islice(valid, 2))) > 1 else None

    def refresh(self) -> None:
        """Reload the file if it has changed. Checks it at most once per `RELOAD_S`."""
        now = time.monotonic()
        if now - self._checked_s < RELOAD_S:
            return
        self._checked_s = now
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return
            parsed = parse_tokens(self._path.read_bytes())
        except OSError as error:
            if self._stamp:
                self._log.error("token file unreadable: no token is valid", path=str(self._path), reason=str(error))
            self._stamp, self._known = (), ParsedTokens({}, [], set())
            return
        if lines := parsed.malformed:
            self._log.error("token file malformed: these lines are ignored", path=str(self._path), lines=lines)
        before, now_known = self._known.expiries.keys(), parsed.expiries.keys()
        self._log.info(
            "token file reloaded", path=str(self._path), tokens=len(now_known), added=len(now_known - before),
            removed=len(before - now_known),
        )  # fmt: skip
        self._stamp, self._known = stamp, parsed


def parse_tokens(data: bytes) -> ParsedTokens:
    """Parse a token file line by line. Malformed lines are reported and do not affect the others."""
    parsed = ParsedTokens({}, [], set())
    for number, line in enumerate(as_utf8(data).splitlines(), 1):
        try:
            token, *words = line.decode().partition("#")[0].split() or [""]
            if not token:
                continue
            scoped = words[-1:] == [TRAIN_SCOPE]
            expiry_s = float("inf")
            if expiry := " ".join(words[: len(words) - scoped]):
                moment = datetime.fromisoformat(expiry)
                expiry_s = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
            parsed.expiries[_hash(token)] = expiry_s
            if scoped:
                parsed.trainers.add(_hash(token))
        except (ValueError, OverflowError):
            parsed.malformed.append(number)
    return parsed


def _hash(token: str) -> str:
    # Comparing hashes instead of tokens keeps the time of a lookup independent of the valid tokens.
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


_UNUSABLE = (OSError, ValueError, TypeError)  # a missing file, no PEM, a key with a passphrase


class CertificateReloader:
    """Check the files at every TLS handshake, and use new ones as soon as key and certificate match.

    While they do not match, for example because only one of them has been replaced so far, the previous ones are used.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None) -> None:
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self._log = structlog.get_logger("tamiyo.serving")
        self._lock = threading.Lock()  # handshakes run in threads of gRPC
        try:
            self._stamp = self._file_stamp()
            first = self._read()
        except _UNUSABLE as error:
            raise UserError(f"cannot use the TLS files ({error}): give PEM files without a passphrase") from error
        # gRPC takes None as "unchanged", which the type stubs do not know.
        fetch = cast(Callable[[], grpc.ServerCertificateConfiguration], self._fetch)
        self.credentials = grpc.dynamic_ssl_server_credentials(first, fetch, client_ca is not None)

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the new configuration, or None if nothing has changed."""
        with self._lock:
            try:
                stamp = self._file_stamp()
                if stamp == self._stamp:
                    return None
                self._stamp = stamp
                configuration = self._read()
            except _UNUSABLE as error:
                self._log.error("certificate not reloaded: the previous one stays in use", reason=str(error))
                return None
            self._log.info("certificate reloaded", path=str(self._certificate))
            return configuration

    def _file_stamp(self) -> tuple[int, ...]:
        return tuple(n for p in (self._certificate, self._key, self._client_ca) if p is not None for n in _stamp(p))

    def _read(self) -> grpc.ServerCertificateConfiguration:
        """Read and check the files. Raises one of `_UNUSABLE`."""
        key, certificate = self._key.read_bytes(), self._certificate.read_bytes()
        public_key = x509.load_pem_x509_certificates(certificate)[0].public_key()
        if load_pem_private_key(key, None).public_key() != public_key:
            raise ValueError(f"{self._key} is not the key of {self._certificate}")
        authority = self._client_ca.read_bytes() if self._client_ca is not None else None
        if authority is not None:
            x509.load_pem_x509_certificates(authority)
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)


def _stamp(path: Path) -> tuple[int, ...]:
    """Return what changes when a file is replaced or written."""
    stat = path.stat()
    return (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino)
