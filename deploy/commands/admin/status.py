"""`tamiyo status`: the state of a run from its store: ledger, lag, ages, rates and bottleneck."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from actors.errors import UserError
from actors.metrics.run_status import bottleneck, wait_shares
from actors.transport.health import Health
from actors.transport.ledger import RETIRED, Ledger, LedgerError
from actors.transport.redis import connect, namespaces

RATE_S = 0.5  # over which rates are measured
ACTOR_COLUMNS = {
    "produced": "produced",
    "accepted": "= accepted",
    "refused_fenced": "+ fenced",
    "dropped_backpressure": "+ dropped",
    "unsent": "+ unsent",
    "lost_with_actor": "+ lost",
}


def show_status(url: str, run: str | None, as_json: bool) -> int:
    """Print the status of a run. Returns the exit status: 1 if an identity of the ledger does not hold, else 0."""
    name = find_run(url, run)
    with closing(connect(url, namespace=name)) as transport:
        before, began_s = transport.ledger(), transport.health().now_s
        time.sleep(RATE_S)
        ledger, health = transport.ledger(), transport.health()
    elapsed_s = max(health.now_s - began_s, 1e-3)
    waits, fault = wait_shares(health.learner, list(health.actors.values())), ""
    try:
        ledger.check()
    except LedgerError as error:
        fault = str(error)
    status = {
        "run": name,
        "exact": not fault,
        "fault": fault,
        "ledger": ledger.to_dict(),
        "generation": health.generation,
        "head_version": health.head_version,
        "oldest_s": health.oldest_s,
        "learner": health.learner,
        "actors": {f"{actor}/{number}": row for (actor, number), row in health.actors.items()},
        "unreadable": ledger.unreadable + health.unreadable,  # rows in the store that Tamiyo did not write
        "rates": {t: (getattr(ledger, t) - getattr(before, t)) / elapsed_s for t in ("accepted", "trained")},
        "waits": waits,
        "bottleneck": bottleneck(waits),
    }
    if as_json:
        print(json.dumps(status, indent=1))
    else:
        Console(highlight=False).print(_panel(status, ledger, health))
    return 1 if fault else 0


def find_run(url: str, run: str | None) -> str:
    """Return `run` if the server has it, or its only run if `run` is None. Raises `UserError` otherwise."""
    known = namespaces(url)
    found = [name for name in known if run in (None, name)]
    if len(found) == 1:
        return found[0]
    if not known:
        raise UserError("there is no run on this server: start one with the same --redis first")
    raise UserError(
        f"{'there are several runs' if run is None else f'there is no run {run!r}'}: give --run {'|'.join(known)}"
    )


def _panel(status: Mapping[str, Any], ledger: Ledger, health: Health) -> Panel:
    terms = " + ".join(f"{term} {getattr(ledger, term):,}" for term in Ledger.TERMS)
    verdict = ("   exact", "green") if status["exact"] else ("   WRONG", "bold red")
    identity = Text.assemble((f"accepted {ledger.accepted:,}", "bold"), f"  =  {terms}", verdict)
    parts: list[RenderableType] = [identity, _pace(status, health), _actors(ledger, health)]
    accounts = _accounts(health)
    if accounts.row_count:
        parts.append(accounts)
    if status["fault"]:
        parts.append(Text(f"the ledger is inconsistent: {status['fault']}", style="bold red"))
    if status["unreadable"]:
        skipped = f"skipped {status['unreadable']} rows of the store that Tamiyo did not write"
        parts.append(Text(skipped, style="yellow"))
    title = f"[bold]{status['run']}[/]  {status['bottleneck']}"
    return Panel(Group(*parts), title=title, title_align="left", border_style="dim")


def _pace(status: Mapping[str, Any], health: Health) -> str:
    learner, rates = health.learner, status["rates"]
    text = f"generation {health.generation}, version {health.head_version}   in {rates['accepted']:.1f}, "
    text += f"out {rates['trained']:.1f} episodes/s   oldest {health.oldest_s:.1f} s\n"
    if learner:
        ago_s = max(0.0, health.now_s - learner["reported_s"])
        text += f"update {learner.get('update', 0.0):.0f}, {ago_s:.0f} s ago   "
        text += f"waited {learner.get('wait_s', 0.0):.2f} of {learner.get('cycle_s', 0.0):.2f} s\n"
        mean, flight, queue, most = (
            learner.get(f"policy_lag_{name}", 0.0) for name in ("mean", "in_flight", "in_queue", "max")
        )
        text += f"lag {mean:.1f} = {flight:.1f} in flight + {queue:.1f} in queue, at most {most:.0f}\n"
    return text + "   ".join(f"{name} {share:.0%}" for name, share in status["waits"].items())


def _accounts(health: Health) -> Table:
    """What training sessions brought, by token; empty without an endpoint that trains."""
    columns = {"steps": "steps", "cut_sessions": "cut", "dropped_sessions": "dropped", "refused": "refused"}
    table = _table("training sessions", *columns.values())
    for (actor, number), figures in sorted(health.actors.items()):
        if columns.keys() <= figures.keys():
            table.add_row(f"{actor}/{number}", *(f"{figures[name]:,.0f}" for name in columns))
    return table


def _actors(ledger: Ledger, health: Health) -> Table:
    table = _table("actor", "version", *ACTOR_COLUMNS.values(), "seen")
    for (actor, number), a in sorted(ledger.actors.items()):
        row = health.actors.get((actor, number))
        seen = f"{max(0.0, health.now_s - row['reported_s']):.0f} s ago" if row else "gone"
        version = f"{row['version']:.0f}" if row and "version" in row else ""
        counts = [f"{getattr(a, term):,}" for term in ACTOR_COLUMNS]
        label = f"{actor}, older" if number == RETIRED else f"{actor}/{number}"
        table.add_row(label, version, *counts, seen, style="" if row else "dim")
    return table


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, header_style="dim", padding=(0, 1, 0, 0))
