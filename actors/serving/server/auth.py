"""Bearer tokens from a file that is read again whenever it changes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import structlog

from actors.errors import UserError
from actors.serving.refusal import Reason, Refusal

LOOK_S = 1.0  # between two looks at the file
Metadata = Iterable[tuple[str, str | bytes]]


class TokenList(NamedTuple):
    """The contents of a token file."""

    expiries: dict[str, float]  # hash of a token -> seconds since 1970
    malformed: list[int]  # line numbers, from 1


class Tokens:
    """The tokens that are valid now. A line of the file is `TOKEN [EXPIRY]`; `#` begins a comment.

    Only what the file says is valid: a malformed line admits nobody, and a file that is missing or unreadable admits
    nobody until it is back. Both are logged. Callers are identified by the hash of their token.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock
        self._log = structlog.get_logger("tamiyo.serving")
        self._stamp: tuple[int, ...] = ()
        self._looked_s = time.monotonic()
        try:
            self._stamp = self._look()
            known, malformed = parse_tokens(path.read_bytes())
        except OSError as error:
            raise UserError(f"the tokens cannot be read ({error}): give another file to --token-file") from error
        if malformed:
            raise UserError(f"line {malformed[0]} of {path} is malformed: a line is TOKEN or TOKEN 2030-01-31")
        if not known:
            raise UserError(f"{path} holds no token: write one a line")
        self._expiries = known

    def check(self, metadata: Metadata) -> str:
        """The owner of a call: the hash of its token. Raises `Refusal`."""
        given = next((v for k, v in metadata if k == "authorization"), "")
        scheme, _, token = (given.decode(errors="replace") if isinstance(given, bytes) else given).partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Refusal(Reason.TOKEN_MISSING, "send metadata `authorization: Bearer TOKEN`")
        owner = _hash(token.strip())
        self.confirm(owner)
        return owner

    def confirm(self, owner: str) -> None:
        """Raises `Refusal` where this owner's token is not valid, or no longer."""
        self.refresh()
        expiry_s = self._expiries.get(owner)
        if expiry_s is None:
            raise Refusal(Reason.TOKEN_INVALID, "this token is not known here")
        if expiry_s <= self._clock():
            raise Refusal(Reason.TOKEN_EXPIRED, "this token has expired: ask for a new one")

    def refresh(self) -> None:
        """Read the file again if it has changed; looks at most once in `LOOK_S`."""
        now = time.monotonic()
        if now - self._looked_s < LOOK_S:
            return
        self._looked_s = now
        try:
            stamp = self._look()
            if stamp == self._stamp:
                return
            known, malformed = parse_tokens(self._path.read_bytes())
        except OSError as error:
            if self._stamp:
                self._log.error("token file unreadable: no token is valid", path=str(self._path), reason=str(error))
            self._stamp, self._expiries = (), {}
            return
        if malformed:
            self._log.error("token file malformed: these lines admit nobody", path=str(self._path), lines=malformed)
        before = self._expiries.keys()
        self._log.info(
            "token file read", path=str(self._path), tokens=len(known), added=len(known.keys() - before),
            removed=len(before - known.keys()),
        )  # fmt: skip
        self._stamp, self._expiries = stamp, known

    def _look(self) -> tuple[int, ...]:
        found = self._path.stat()
        return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)


def parse_tokens(data: bytes) -> TokenList:
    """Each line by itself, so that a bad one takes no other with it."""
    found = TokenList({}, [])
    for number, line in enumerate(data.splitlines(), 1):
        try:
            words = line.decode().partition("#")[0].split(None, 1)
            if words:
                found.expiries[_hash(words[0])] = _seconds(words[1].strip()) if len(words) > 1 else float("inf")
        except (ValueError, OverflowError):
            found.malformed.append(number)
    return found


def _hash(token: str) -> str:
    # Looking a hash up takes a time that tells nothing about the tokens it is compared with.
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def _seconds(text: str) -> float:
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
