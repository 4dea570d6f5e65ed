"""`tamiyo status`: what a run's store knows, once or live: both identities, lag, ages, rates, and who is waited for."""

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
from actors.transport.redis import RedisTransport, connect, namespaces

EVERY_S = 1.0
OF_ACTORS = {
    "produced": "produced",
    "accepted": "= accepted",
    "refused_fenced": "+ fenced",
    "dropped_backpressure": "+ dropped",
    "unsent": "+ unsent",
    "lost_with_actor": "+ lost",
}


@dataclass(frozen=True)
class Look:
    """The store at one moment; `before` is the look that rates are measured from."""

    run: str
    ledger: Ledger
    health: Health
    before: tuple[float, Ledger] | None = None  # when, by the store's clock

    @property
    def fault(self) -> str:
        """Why an identity does not hold, empty where both do."""
        try:
            self.ledger.check()
        except LedgerError as error:
            return str(error)
        return ""

    @property
    def unreadable(self) -> int:
        """Rows of the store that are not Tamiyo's."""
        return self.ledger.unreadable + self.health.unreadable

    def rate(self, term: str) -> float | None:
        """Episodes per second that became `term` since the look before."""
        if self.before is None or self.health.now_s <= self.before[0]:
            return None
        change = getattr(self.ledger, term) - getattr(self.before[1], term)
        return float(change / (self.health.now_s - self.before[0]))

    @property
    def waits(self) -> dict[str, float]:
        return wait_shares(self.health.learner, list(self.health.actors.values()))

    def to_dict(self) -> dict[str, Any]:
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
    """Returns 0, or 1 where an identity does not hold."""
    name = find_run(url, run)
    transport = connect(url, namespace=name)
    try:
        look = see(name, transport)
        if watch:
            return _watch(look, transport, as_json)
        if not as_json:
            time.sleep(EVERY_S / 2)  # for rates
            look = see(name, transport, look)
        _show(look, as_json)
        return 1 if look.fault else 0
    finally:
        transport.close()


def find_run(url: str, run: str | None) -> str:
    """The run that is meant: the one named, else the only one. Raises `UserError`."""
    known = namespaces(url)
    if run is not None and run in known:
        return run
    if run is None and len(known) == 1:
        return known[0]
    if not known:
        raise UserError("no run has used that server yet: start `tamiyo learner` with the same --redis")
    raise UserError(f"{'say which run' if run is None else f'no run {run!r} there'}: --run {'|'.join(known)}")


def see(name: str, transport: RedisTransport, before: Look | None = None) -> Look:
    earlier = (before.health.now_s, before.ledger) if before else None
    return Look(name, transport.ledger(), transport.health(), earlier)


def _watch(look: Look, transport: RedisTransport, as_json: bool) -> int:
    if as_json:
        for seen in _looks(look, transport, Console(stderr=True, highlight=False)):
            print(json.dumps(seen.to_dict()), flush=True)
    with Live(auto_refresh=False, screen=False) as live:
        for seen in _looks(look, transport, live.console):
            live.update(render(seen), refresh=True)
    return 0


def _looks(look: Look, transport: RedisTransport, console: Console) -> Iterator[Look]:
    """One every second, without an end; a store that is away is told of."""
    while True:
        time.sleep(EVERY_S)
        try:
            look = see(look.run, transport, look)
        except Unreachable as error:
            console.print(Text(f"{error}; looking again", style="yellow"), soft_wrap=True)
            continue
        yield look


def _show(look: Look, as_json: bool) -> None:
    if as_json:
        print(json.dumps(look.to_dict(), indent=1))
    else:
        Console(highlight=False).print(render(look))


def render(look: Look) -> Panel:
    parts: list[RenderableType] = [_identity(look), _pace(look), _actors(look)]
    if look.fault:
        parts.append(Text(f"the accounts do not add up: {look.fault}", style="bold red"))
    if look.unreadable:
        parts.append(Text(f"{look.unreadable} rows of the store are not Tamiyo's, and are left out", style="yellow"))
    verdict = bottleneck(look.waits)
    return Panel(Group(*parts), title=f"[bold]{look.run}[/]  {verdict}", title_align="left", border_style="dim")


def _identity(look: Look) -> Text:
    text = Text(f"accepted {look.ledger.accepted:,}", style="bold")
    text.append("  =  ", style="dim")
    for i, term in enumerate(Ledger.TERMS):
        n = getattr(look.ledger, term)
        text.append(" + " if i else "", style="dim")
        text.append(f"{term} {n:,}", style="cyan" if n else "dim")
    text.append("   exact" if not look.fault else "   WRONG", style="green" if not look.fault else "bold red")
    return text


def _pace(look: Look) -> Text:
    h, told = look.health, look.health.learner
    rates = ["-" if r is None else f"{r:.1f}" for r in (look.rate("accepted"), look.rate("trained"))]
    lines = [
        (
            f"generation {h.generation}, version {h.head_version}   in {rates[0]}, out {rates[1]} episodes/s   "
            f"oldest {h.oldest_s:.1f} s"
        )
    ]
    if told:
        lines += [
            (
                f"update {told.get('update', 0):.0f}, {max(0.0, h.now_s - told['told_s']):.0f} s ago   "
                f"waited {told.get('wait_s', 0):.2f} of {told.get('cycle_s', 0):.2f} s"
            ),
            (
                f"lag {told.get('policy_lag_mean', 0):.1f} = {told.get('policy_lag_in_flight', 0):.1f} in flight + "
                f"{told.get('policy_lag_in_queue', 0):.1f} in queue, at most {told.get('policy_lag_max', 0):.0f}"
            ),
        ]
    lines.append("   ".join(f"{name} {share:.0%}" for name, share in look.waits.items()))
    return Text("\n".join(lines))


def _actors(look: Look) -> Table:
    table = Table("actor", "version", *OF_ACTORS.values(), "seen", box=None, header_style="dim", padding=(0, 1, 0, 0))
    for (actor, number), a in sorted(look.ledger.actors.items()):
        told = look.health.actors.get((actor, number))
        seen = f"{max(0.0, look.health.now_s - told['told_s']):.0f} s ago" if told else "gone"
        version = f"{told['version']:.0f}" if told and "version" in told else ""
        counts = [f"{getattr(a, term):,}" for term in OF_ACTORS]
        who = f"{actor}, older" if number == RETIRED else f"{actor}/{number}"
        table.add_row(who, version, *counts, seen, style="" if told else "dim")
    return table
