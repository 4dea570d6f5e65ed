"""`RedisReports`: the ledger and the health figures, read from a server on which actors may write anything to them."""

from __future__ import annotations

import logging

from actors.transport.base import to_dict
from actors.transport.health import Health, read_rows
from actors.transport.ledger import MAX_FIELDS, STORED, Ledger
from actors.transport.redis_server import RedisServer

log = logging.getLogger(__name__)


class RedisReports:
    """Reads the counts and figures of one run; invalid rows are skipped, counted and logged."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self._unreadable: dict[str, int] = {}  # part of the store -> unreadable rows when last read

    def health(self) -> Health:
        """The latest health figures of the learner and of all actors."""
        key = self.server.key
        excess = self._excess_fields("health")
        (seconds, micros), current, head, oldest, rows = self.server.read_together(
            ("TIME",),
            ("HGET", key("generations"), "current"),
            ("HGET", key("weights"), "head"),
            ("XRANGE", key("episodes"), "-", "+", "COUNT", 1),
            ("HMGET", key("health"), "learner") if excess else ("HGETALL", key("health")),
        )
        rows = {b"learner": rows[0] or b""} if excess else to_dict(rows)
        now_s = int(seconds) + int(micros) / 1e6
        learner, actors, unreadable = read_rows(rows)
        unreadable += excess
        self.warn_about_unreadable("health", unreadable)
        # An entry's id begins with its Unix time in milliseconds.
        age_s = max(0.0, now_s - int(oldest[0][0].partition(b"-")[0]) / 1000) if oldest else 0.0
        head = -1 if head is None else int(head)
        return Health(now_s, int(current or 0), head, age_s, learner, actors, unreadable)

    def ledger(self) -> Ledger:
        """The current counts of all episodes."""
        key = self.server.key
        excess, totals = self._excess_fields("ledger"), sorted(STORED)
        rows, entries, known = self.server.read_together(
            ("HMGET", key("ledger"), *totals) if excess else ("HGETALL", key("ledger")),
            ("XLEN", key("episodes")),
            ("HMGET", key("generations"), "store", "turn"),
        )
        fields = {k.encode(): v for k, v in zip(totals, rows, strict=True) if v} if excess else to_dict(rows)
        store, turn = (int(n or 0) for n in known)
        ledger = Ledger.from_fields(fields, stream_entries=int(entries), store=store, turn=turn, unreadable=excess)
        self.warn_about_unreadable("ledger", ledger.unreadable)
        return ledger

    def warn_about_unreadable(self, part: str, count: int) -> None:
        """Log a warning whenever the number of unreadable rows has grown."""
        if count > self._unreadable.get(part, 0):
            log.warning("skipped %d rows of the store's %s that Tamiyo did not write", count, part)
        self._unreadable[part] = count

    def _excess_fields(self, name: str) -> int:
        """Return the number of fields in a hash if they are too many to be read, else 0."""
        found = int(self.server.read("HLEN", self.server.key(name)))
        return found if found > MAX_FIELDS else 0
