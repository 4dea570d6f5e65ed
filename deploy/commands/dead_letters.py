"""`tamiyo dead-letters`: what was set aside, why, and back into the queue."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from actors.codec import decode_episode
from actors.errors import UserError
from actors.transport.base import DeadLetter, PutStatus
from actors.transport.redis import RedisTransport, connect
from actors.types.episode import InvalidEpisode
from deploy.commands.status import find_run


def dead_letters(action: str, url: str, run: str | None, ids: list[str], save: Path | None) -> int:
    """`list`, `show ID`, `requeue ID ...` (or `all`). Returns 1 where a letter could not be queued again."""
    transport = connect(url, namespace=find_run(url, run))
    try:
        letters = {letter.dead_id: letter for letter in transport.dead_letters()}
        if action == "list":
            return _list(letters)
        if unknown := [i for i in ids if i not in letters and i != "all"]:
            raise UserError(f"no dead letter {unknown[0]}: `tamiyo dead-letters list` shows those that are kept")
        if not ids:
            raise UserError(f"name a dead letter: tamiyo dead-letters {action} ID")
        if action == "show":
            return _show(letters[ids[0]], save)
        return _requeue(transport, list(letters) if ids == ["all"] else ids)
    finally:
        transport.close()


def _list(letters: dict[str, DeadLetter]) -> int:
    table = Table("id", "episode", "bytes", "reason", box=None)
    for letter in letters.values():
        table.add_row(letter.dead_id, letter.header.episode_id, f"{len(letter.payload):,}", printable(letter.reason))
    Console(highlight=False).print(table if letters else "no dead letters")
    return 0


def printable(text: str) -> Text:
    """As it is: no markup of Rich's is obeyed, and no control character reaches the terminal."""
    return Text("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text))


def _show(letter: DeadLetter, save: Path | None) -> int:
    facts = Table.grid(padding=(0, 2))
    h = letter.header
    facts.add_row("episode", h.episode_id)
    facts.add_row("versions", f"{h.oldest_version} to {h.newest_version}, generation {h.generation}")
    facts.add_row("reason", printable(letter.reason))
    facts.add_row("payload", f"{len(letter.payload):,} bytes" if letter.payload else "not kept")
    if letter.payload:
        facts.add_row("now", printable(_verdict(letter.payload)))
    Console(highlight=False).print(facts)
    if save is not None:
        save.write_bytes(letter.payload)
        print(save)
    return 0


def _verdict(payload: bytes) -> str:
    """What this version's decoder makes of it."""
    try:
        episode = decode_episode(payload, max_bytes=len(payload))  # its run's queue allowed so many
    except InvalidEpisode as error:
        return f"cannot be read: {error}"
    return f"reads well: {len(episode)} steps of {episode.env_id} ({episode.task_id}), ended by {episode.end_reason}"


def _requeue(transport: RedisTransport, ids: list[str]) -> int:
    failed = 0
    for dead_id in ids:
        try:
            status = transport.requeue(dead_id)
            outcome = {PutStatus.OK: "queued", PutStatus.BUSY: "the queue is full, try later"}.get(
                status, "of a lineage that was given up: stays here"
            )
            failed += status is not PutStatus.OK
        except KeyError:
            failed += 1
            outcome = "its payload was not kept"
        print(f"{dead_id}: {outcome}")
    return 1 if failed else 0
