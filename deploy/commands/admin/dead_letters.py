"""`tamiyo dead-letters`: list, show and requeue episodes that could not be trained on."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from actors.codec import decode_episode
from actors.errors import UserError
from actors.transport.base import DeadLetter, PutStatus
from actors.transport.redis import Transport, connect
from actors.types.episode import InvalidEpisode
from deploy.commands.admin.status import find_run


def dead_letters(action: str, url: str, run: str | None, ids: list[str], save: Path | None) -> int:
    """Run the action `list`, `show` or `requeue` on the dead letters of a run.

    The id `all` stands for every dead letter; `show` writes the payload of a single one to `save` if given. Returns the
    exit status: 1 if a letter could not be queued again, else 0. Raises `UserError` for unknown or missing ids.
    """
    transport = connect(url, namespace=find_run(url, run))
    try:
        letters = {letter.dead_id: letter for letter in transport.dead_letters()}
        if action == "list":
            return _list(letters)
        if unknown := [i for i in ids if i not in letters and i != "all"]:
            raise UserError(f"no dead letter has the id {unknown[0]}: run `tamiyo dead-letters list` to see the ids")
        if not ids:
            raise UserError(f"the id of a dead letter is missing: tamiyo dead-letters {action} ID")
        chosen = list(letters) if "all" in ids else ids
        if action == "requeue":
            return _requeue(transport, chosen)
        if save is not None and len(chosen) != 1:
            raise UserError(f"--save writes one payload, but {len(chosen)} dead letters are chosen: give one id")
        return _show([letters[i] for i in chosen], save)
    finally:
        transport.close()


def _list(letters: dict[str, DeadLetter]) -> int:
    table = Table("id", "episode", "bytes", "reason", box=None)
    for letter in letters.values():
        table.add_row(letter.dead_id, letter.header.episode_id, f"{len(letter.payload):,}", printable(letter.reason))
    Console(highlight=False).print(table if letters else "no dead letters")
    return 0


def printable(text: str) -> Text:
    """Return the text literally, without interpreting Rich markup and with control characters replaced."""
    return Text("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text))


def _show(letters: list[DeadLetter], save: Path | None) -> int:
    console = Console(highlight=False)
    for letter in letters:
        table = Table.grid(padding=(0, 2))
        h = letter.header
        table.add_row("id", letter.dead_id)
        table.add_row("episode", h.episode_id)
        table.add_row("versions", f"{h.oldest_version} to {h.newest_version}, generation {h.generation}")
        table.add_row("reason", printable(letter.reason))
        table.add_row("payload", f"{len(letter.payload):,} bytes" if letter.payload else "not kept")
        if letter.payload:
            table.add_row("decoded", printable(_decoded(letter.payload)))
        console.print(table)
    if not letters:
        console.print("no dead letters")
    if save is not None:
        save.write_bytes(letters[0].payload)
        print(save)
    return 0


def _decoded(payload: bytes) -> str:
    """Describe the episode, or why this version of Tamiyo cannot decode it."""
    try:
        episode = decode_episode(payload, max_bytes=len(payload))  # its run's queue accepted this size
    except InvalidEpisode as error:
        return f"failed: {error}"
    return f"{len(episode)} steps of {episode.env_id} ({episode.task_id}), ended by {episode.end_reason}"


def _requeue(transport: Transport, ids: list[str]) -> int:
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
