"""`tamiyo dead-letters`: list and requeue episodes that could not be trained on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from rich.console import Console
from rich.table import Table
from rich.text import Text

from actors.errors import UserError
from actors.transport.base import PutStatus
from actors.transport.redis import Transport, connect
from deploy.commands.admin.status import find_run


def dead_letters(action: str, url: str, run: str | None, ids: Sequence[str]) -> int:
    """Run the action `list` or `requeue` on the dead letters of a run; the id `all` stands for every one.

    Returns the exit status: 1 if a letter could not be queued again, else 0. Raises `UserError` for unknown or missing
    ids.
    """
    with closing(connect(url, namespace=find_run(url, run))) as transport:
        letters = transport.dead_letters()
        if action == "list":
            table = Table("id", "episode", "versions", "bytes", "reason", box=None)
            for letter in letters:
                h, size = letter.header, f"{len(letter.payload):,}" if letter.payload else "not kept"
                versions = f"{h.oldest_version} to {h.newest_version}"
                reason = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in letter.reason)
                table.add_row(letter.dead_id, h.episode_id, versions, size, Text(reason))  # without markup of Rich
            Console(highlight=False).print(table if letters else "no dead letters")
            return 0
        known = [letter.dead_id for letter in letters]
        if unknown := [i for i in ids if i not in known and i != "all"]:
            raise UserError(f"no dead letter has the id {unknown[0]}: run `tamiyo dead-letters list` to see the ids")
        if not ids:
            raise UserError("the id of a dead letter is missing: tamiyo dead-letters requeue ID")
        return _requeue(transport, known if "all" in ids else ids)


def _requeue(transport: Transport, ids: Sequence[str]) -> int:
    failed = 0
    for dead_id in ids:
        try:
            status = transport.requeue(dead_id)
            outcome = {PutStatus.OK: "queued", PutStatus.BUSY: "the queue is full, try again later"}.get(
                status, "not queued: its weights were rolled back"
            )
            failed += status is not PutStatus.OK
        except KeyError:
            failed += 1
            outcome = "not queued: its payload was not kept"
        print(f"{dead_id}: {outcome}")
    return 1 if failed else 0
