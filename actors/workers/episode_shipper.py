"""`EpisodeShipper`: ships the episodes of training sessions through the queue, with one producer for each token."""

from __future__ import annotations

import logging
import threading
from collections import deque
from functools import partial

from actors.serving.server.training import Account
from actors.transport.base import BUSY_RETRY_S
from actors.transport.redis import Transport
from actors.transport.retry import Retry
from actors.types.episode import Episode
from actors.workers.outbox import Outbox

log = logging.getLogger(__name__)
REPORT_S = 1.0  # between two reports to the store
PRODUCER = "external"
FIGURES = ("steps", "cut_sessions", "dropped_sessions", "refused")


class EpisodeShipper:
    """An `EpisodeSink`. Each token is an actor of the ledger, `external-` and the start of the token's hash, or
    `external` without tokens; its counts there are the token's account.

    Episodes are shipped in a thread of their own, in the order in which they came. There is no room while the queue is
    busy or the store does not answer, and from `capacity_steps` unsent steps on. The server then makes its clients
    wait; what they have in progress is kept all the same, so that nothing is dropped.
    """

    def __init__(self, transport: Transport, run: str, capacity_steps: int, max_lag: int) -> None:
        self.max_lag = max_lag
        self._transport, self._run, self._capacity = transport, run, capacity_steps
        self._lock, self._wake, self._stopping = threading.Lock(), threading.Event(), threading.Event()
        self._accounts: dict[str, Account] = {}
        self._waiting: deque[tuple[str, Episode]] = deque()
        self._outboxes: dict[str, Outbox] = {}
        self._unsent = self._unsent_steps = 0  # episodes and their steps
        self._busy = False  # the queue had no room at the last attempt, or the store did not answer
        self._retry = Retry(report=self._report_outage, stop=self._stopping.is_set)
        self._thread = threading.Thread(target=self._run_thread, name="episode-shipper", daemon=True)
        self.error: BaseException | None = None  # that ended the thread
        self._thread.start()

    def account(self, owner: str) -> Account:
        """See `EpisodeSink.account`."""
        with self._lock:
            if owner not in self._accounts:
                self._accounts[owner] = Account(name=f"{PRODUCER}-{owner[:8]}" if owner else PRODUCER)
            return self._accounts[owner]

    def accounts(self) -> list[Account]:
        """See `EpisodeSink.accounts`."""
        with self._lock:
            return list(self._accounts.values())

    def add(self, owner: str, episode: Episode) -> None:
        """See `EpisodeSink.add`."""
        account = self.account(owner)
        with self._lock:
            self._waiting.append((owner, episode))
            self._unsent += 1
            self._unsent_steps += len(episode)
            account.produced += 1
            account.unsent += 1
        self._wake.set()

    def retry_s(self) -> float:
        """See `EpisodeSink.retry_s`."""
        return BUSY_RETRY_S if self._busy or self._unsent_steps >= self._capacity else 0.0

    def close(self, timeout_s: float) -> int:
        """Ship what is left, for at most `timeout_s`. Returns the number of episodes that were not sent."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout_s)
        return self._unsent

    def _run_thread(self) -> None:
        try:
            while True:
                if self._busy:
                    self._retry(lambda: self._transport.wait_for_room(BUSY_RETRY_S))
                else:
                    self._wake.wait(REPORT_S)
                self._wake.clear()
                last = self._stopping.is_set()
                self._ship()
                if last and not self._unsent:
                    return
        except BaseException as error:
            self.error = error
            log.exception("the episodes of training sessions can no longer be shipped")

    def _ship(self) -> None:
        while self._waiting:
            outbox = self._outbox(self._waiting[0][0])
            owner, episode = self._waiting[0]
            if len(outbox) and outbox.unsent_steps + len(episode) > self._capacity:
                break  # so that it drops nothing
            self._waiting.popleft()
            outbox.add(episode)
        for owner, outbox in self._outboxes.items():
            account = self.account(owner)
            outbox.health |= {figure: float(getattr(account, figure)) for figure in FIGURES}
            self._retry(partial(outbox.ship, 0.0))
            self._retry(outbox.report)
        self._count()
        self._busy = self._unsent > 0 and any(map(len, self._outboxes.values()))
        if self._waiting and not self._busy:
            self._wake.set()

    def _report_outage(self, line: str) -> None:
        self._busy = True
        log.warning(line)

    def _count(self) -> None:
        with self._lock:
            self._unsent = len(self._waiting) + sum(map(len, self._outboxes.values()))
            waiting_steps = sum(len(episode) for _, episode in self._waiting)
            self._unsent_steps = waiting_steps + sum(outbox.unsent_steps for outbox in self._outboxes.values())
            for owner, outbox in self._outboxes.items():
                account, counts = self._accounts[owner], outbox.counts
                account.accepted, account.fenced = counts.accepted, counts.refused_fenced
                account.dropped = counts.dropped_backpressure
                account.unsent = account.produced - account.accepted - account.fenced - account.dropped

    def _outbox(self, owner: str) -> Outbox:
        if owner not in self._outboxes:
            name = self.account(owner).name
            new = self._retry(lambda: self._transport.new_incarnation(name))
            self._outboxes[owner] = Outbox(self._transport, self._run, name, new.number, self._capacity)
        return self._outboxes[owner]
