"""`tamiyo status`: the state of a run from its store, once or live: ledger, lag, ages, rates and bottleneck."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from actors.errors import UserError
from actors.metrics.bottleneck import bottleneck, wait_shares
from actors.transport.base import Unreachable
from actors.transport.health import Health
from actors.transport.ledger import RETIRED, Ledger, LedgerError
from actors.transport.redis import Transport, connect, namespaces

REFRESH_S = 1.0
ACTOR_COLUMNS = {
    "produced": "produced",
    "accepted": "= accepted",
    "refused_fenced": "+ fenced",
    "dropped_backpressure": "+ dropped",
    "unsent": "+ unsent",
    "lost_with_actor": "+ lost",
}


@dataclass(frozen=True)
class RunSnapshot:
    """The state of a run's store at one moment."""

    run: str
    ledger: Ledger
    health: Health
    previous: tuple[float, Ledger] | None = None  # an earlier time, by the store's clock, and the ledger then

    @property
    def fault(self) -> str:
        """Why an identity of the ledger does not hold; empty if both hold."""
        try:
            self.ledger.check()
        except LedgerError as error:
            return str(error)
        return ""

    @property
    def unreadable(self) -> int:
        """Number of rows in the store that Tamiyo did not write."""
        return self.ledger.unreadable + self.health.unreadable

    def rate(self, term: str) -> float | None:
        """Episodes per second that were counted as `term` since the previous snapshot; None without one."""
        if self.previous is None or self.health.now_s <= self.previous[0]:
            return None
        change = getattr(self.ledger, term) - getattr(self.previous[1], term)
        return float(change / (self.health.now_s - self.previous[0]))

    @property
    def waits(self) -> dict[str, float]:
        """Share of the time that each part of the run was waited for, by the name of the bottleneck."""
        return wait_shares(self.health.learner, list(self.health.actors.values()))

    def to_dict(self) -> dict[str, Any]:
        """The output of `--json`."""
        h = self.health
        return {
            "run": self.run,
            "exact": not self.fault,
            "fault": self.fault,
            "ledger": self.ledger.to_dict(),
            "generation": h.generation,
            "head_version": h.head_version,
            "oldest_s": h.oldest_s,
            "learner": h.learner,
            "actors": {f"{actor}/{number}": row for (actor, number), row in h.actors.items()},
            "unreadable": self.unreadable,
            "rates": {term: self.rate(term) for term in ("accepted", "trained")},
            "waits": self.waits,
            "bottleneck": bottleneck(self.waits),
        }


def show_status(url: str, run: str | None, watch: bool, as_json: bool) -> int:
    """Print the status of a run. Returns the exit status: 1 if an identity of the ledger does not hold, else 0."""
    name = find_run(url, run)
    transport = connect(url, namespace=name)
    try:
        snapshot = take_snapshot(name, transport)
        if watch:
            return _watch(snapshot, transport, as_json)
        if not as_json:
            time.sleep(REFRESH_S / 2)  # a second snapshot is needed for rates
            snapshot = take_snapshot(name, transport, snapshot)
        _show(snapshot, as_json)
        return 1 if snapshot.fault else 0
    finally:
        transport.close()


def find_run(url: str, run: str | None) -> str:
    """Return `run` if the server has it, or its only run if `run` is None. Raises `UserError` otherwise."""
    known = namespaces(url)
    if run is not None and run in known:
        return run
    if run is None and len(known) == 1:
        return known[0]
    if not known:
        raise UserError("there is no run on this server: start one with the same --redis first")
    raise UserError(
        f"{'there are several runs' if run is None else f'there is no run {run!r}'}: give --run {'|'.join(known)}"
    )


def take_snapshot(run: str, transport: Transport, previous: RunSnapshot | None = None) -> RunSnapshot:
    """Read the store; rates are measured from `previous`."""
    earlier = (previous.health.now_s, previous.ledger) if previous else None
    return RunSnapshot(run, transport.ledger(), transport.health(), earlier)


def _watch(first: RunSnapshot, transport: Transport, as_json: bool) -> int:
    if as_json:
        for snapshot in _snapshots(first, transport, Console(stderr=True, highlight=False)):
            print(json.dumps(snapshot.to_dict()), flush=True)
    with Live(auto_refresh=False, screen=False) as live:
        for snapshot in _snapshots(first, transport, live.console):
            live.update(render(snapshot), refresh=True)
    return 0


def _snapshots(snapshot: RunSnapshot, transport: Transport, console: Console) -> Iterator[RunSnapshot]:
    """Yield a snapshot every `REFRESH_S`, without end. Reports an unreachable store on `console` and continues."""
    while True:
        time.sleep(REFRESH_S)
        try:
            snapshot = take_snapshot(snapshot.run, transport, snapshot)
        except Unreachable as error:
            console.print(Text(f"{error}; trying again", style="yellow"), soft_wrap=True)
            continue
        yield snapshot


def _show(snapshot: RunSnapshot, as_json: bool) -> None:
    if as_json:
        print(json.dumps(snapshot.to_dict(), indent=1))
    else:
        Console(highlight=False).print(render(snapshot))


def render(snapshot: RunSnapshot) -> Panel:
    """Lay out a snapshot for the terminal."""
    parts: list[RenderableType] = [_identity(snapshot), _pace(snapshot), _actors(snapshot)]
    accounts = _accounts(snapshot)
    if accounts.row_count:
        parts.append(accounts)
    if snapshot.fault:
        parts.append(Text(f"the ledger is inconsistent: {snapshot.fault}", style="bold red"))
    if snapshot.unreadable:
        parts.append(Text(f"skipped {snapshot.unreadable} rows of the store that Tamiyo did not write", style="yellow"))
    verdict = bottleneck(snapshot.waits)
    return Panel(Group(*parts), title=f"[bold]{snapshot.run}[/]  {verdict}", title_align="left", border_style="dim")


def _identity(snapshot: RunSnapshot) -> Text:
    text = Text(f"accepted {snapshot.ledger.accepted:,}", style="bold")
    text.append("  =  ", style="dim")
    for i, term in enumerate(Ledger.TERMS):
        n = getattr(snapshot.ledger, term)
        text.append(" + " if i else "", style="dim")
        text.append(f"{term} {n:,}", style="cyan" if n else "dim")
    text.append("   exact" if not snapshot.fault else "   WRONG", style="green" if not snapshot.fault else "bold red")
    return text


def _pace(snapshot: RunSnapshot) -> Text:
    h, learner = snapshot.health, snapshot.health.learner
    rates = ["-" if r is None else f"{r:.1f}" for r in (snapshot.rate("accepted"), snapshot.rate("trained"))]
    lines = [
        (
            f"generation {h.generation}, version {h.head_version}   in {rates[0]}, out {rates[1]} episodes/s   "
            f"oldest {h.oldest_s:.1f} s"
        )
    ]
    if learner:
        lines += [
            (
                f"update {learner.get('update', 0):.0f}, {max(0.0, h.now_s - learner['reported_s']):.0f} s ago   "
                f"waited {learner.get('wait_s', 0):.2f} of {learner.get('cycle_s', 0):.2f} s"
            ),
            (
                f"lag {learner.get('policy_lag_mean', 0):.1f} = "
                f"{learner.get('policy_lag_in_flight', 0):.1f} in flight + "
                f"{learner.get('policy_lag_in_queue', 0):.1f} in queue, at most {learner.get('policy_lag_max', 0):.0f}"
            ),
        ]
    lines.append("   ".join(f"{name} {share:.0%}" for name, share in snapshot.waits.items()))
    return Text("\n".join(lines))


def _accounts(snapshot: RunSnapshot) -> Table:
    """What training sessions brought, by token; empty without an endpoint that trains."""
    columns = {"steps": "steps", "cut_sessions": "cut", "dropped_sessions": "dropped", "refused": "refused"}
    table = Table("training sessions", *columns.values(), box=None, header_style="dim", padding=(0, 1, 0, 0))
    for (actor, number), figures in sorted(snapshot.health.actors.items()):
        if columns.keys() <= figures.keys():
            table.add_row(f"{actor}/{number}", *(f"{figures[name]:,.0f}" for name in columns))
    return table


def _actors(snapshot: RunSnapshot) -> Table:
    table = Table(
        "actor", "version", *ACTOR_COLUMNS.values(), "seen", box=None, header_style="dim", padding=(0, 1, 0, 0)
    )
    for (actor, number), a in sorted(snapshot.ledger.actors.items()):
        row = snapshot.health.actors.get((actor, number))
        seen = f"{max(0.0, snapshot.health.now_s - row['reported_s']):.0f} s ago" if row else "gone"
        version = f"{row['version']:.0f}" if row and "version" in row else ""
        counts = [f"{getattr(a, term):,}" for term in ACTOR_COLUMNS]
        label = f"{actor}, older" if number == RETIRED else f"{actor}/{number}"
        table.add_row(label, version, *counts, seen, style="" if row else "dim")
    return table
