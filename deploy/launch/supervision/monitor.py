"""`RunMonitor`: a thread that reports the status of a run as metrics, even while learner or Redis are down."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from actors.errors import UserError
from actors.metrics.run_status import run_status
from actors.transport.base import Unreachable
from actors.transport.redis import Transport

EVERY_S = 2.0
CLOSE_S = 1.0


class RunMonitor:
    """Report the run's status every `EVERY_S` until `close`. `counts` are reported even if Redis is unreachable."""

    def __init__(
        self,
        connect: Callable[[], Transport],
        report: Callable[[Mapping[str, float]], None],
        counts: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._connect, self._report, self._counts = connect, report, counts
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, without waiting for a Redis call that does not return."""
        self._stop.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        transport: Transport | None = None
        while not self._stop.is_set():
            self._report(self._counts())
            with suppress(Unreachable, UserError):  # Redis is unreachable: try again later
                transport = transport or self._connect()
                status = run_status(transport.ledger(), transport.health())
                if not self._stop.is_set():
                    self._report(status)
            self._stop.wait(EVERY_S)
        if transport is not None:
            transport.close()
