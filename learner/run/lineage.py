"""`Lineage`: which of a run's learners may write to its folder, and from what it continues.

`generations/` in the run's folder has a folder for each generation, which is made by the learner that claims the number
and never used by another: even a store that lost its memory cannot give a number out twice. It holds

    episodes.jsonl, metrics.jsonl    the lines of this lineage: a copy of its ancestor's, then its own
    opened.json                      its first version of weights, and how the store's ledger was when it opened

The files of the same names in the run's folder are links to those of the open generation, for readers. A learner that
was fenced still has its own files open, so that nobody reads what it writes late. See `learner.run.checkpoint` for the
protocol as a whole.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from actors.errors import UserError
from actors.policy.saved import CheckpointKey
from actors.transport.base import Fenced, Unreachable
from actors.transport.ledger import LedgerMemory
from actors.transport.redis import Transport
from learner.run.checkpoint import (
    Ancestors,
    Checkpoint,
    in_lineage,
    key_of,
    list_checkpoints,
    load_checkpoint,
    newest_sound,
    sync_folder,
    write_checkpoint,
    write_durably,
)
from learner.run.metrics_log import copy_lines

OPENED = "opened.json"


class LineageFolder:
    """The checkpoints and generations in a run folder, read without a claim."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.checkpoints, self._generations = run_dir / "checkpoints", run_dir / "generations"

    def folder_of(self, generation: int) -> Path:
        return self._generations / f"{generation:05d}"

    def claimed(self) -> list[int]:
        """Return the generations that have a folder."""
        return [int(path.name) for path in self._generations.glob("[0-9]*")]

    def latest(self) -> int:
        """Return the last generation that has a folder or a checkpoint; 0 if there is none."""
        named = [key_of(path).generation for path in list_checkpoints(self.checkpoints)]
        return max([0, *self.claimed(), *named])

    def make(self, generation: int) -> None:
        """Claim a generation. Raises `FileExistsError` if another learner was faster."""
        self._generations.mkdir(parents=True, exist_ok=True)
        self.folder_of(generation).mkdir()
        sync_folder(self._generations)

    def newest(self) -> tuple[Path, Checkpoint] | None:
        """Return the newest checkpoint, or None if there is none. Raises `UserError` if it is damaged."""
        while found := list_checkpoints(self.checkpoints):
            try:
                return found[-1], load_checkpoint(found[-1])
            except UserError:
                if found[-1].exists():
                    raise  # otherwise its learner has removed it after writing a newer one
        return None

    def lines_of(self, generation: int) -> Path:
        """Return the folder with the lines of a generation. If a later one has removed it, that is the run folder,
        which links to copies of them."""
        folder = self.folder_of(generation)
        return folder if folder.is_dir() else self.run_dir

    def opened(self, generation: int) -> tuple[int, LedgerMemory | None]:
        """Return the first version of this generation, -1 if it never opened, and the store's ledger at that time."""
        try:
            opened = json.loads((self.folder_of(generation) / OPENED).read_text())
        except FileNotFoundError:
            return -1, None
        return int(opened["version"]), LedgerMemory.from_dict(opened["memory"])

    def as_opened(self, checkpoint: Checkpoint) -> Checkpoint:
        """Add the changes made by opening to a generation's first checkpoint, which is written before that: weights
        received their version, and acknowledgements of abandoned updates were revoked, which an older copy of the store
        does not know."""
        progress = checkpoint.progress
        version, memory = self.opened(progress.generation)
        if version <= progress.version:
            return checkpoint
        return replace(checkpoint, progress=replace(progress, version=version), memory=memory)


class Lineage(LineageFolder):
    """The claim of one learner. `store` refuses older generations, and is compared with this folder."""

    def __init__(self, run_dir: Path, store: Transport) -> None:
        super().__init__(run_dir)
        self._store = store
        self.generation = 0  # claimed last
        self.ancestors: Ancestors = ()
        self.lines_from = run_dir  # the folder of the lines to continue from

    @property
    def folder(self) -> Path:
        return self.folder_of(self.generation)

    def take_over(self) -> Checkpoint | None:
        """Claim the next generation, whichever learner holds the current one, then load the newest checkpoint."""
        number = 0
        while True:
            number = 1 + max(number, self.latest(), self._store.current_generation())
            try:
                self._claim(number)
                break
            except (FileExistsError, Fenced):
                continue  # another learner was faster
        found = self.newest()
        if found is None:
            return None
        path, checkpoint = found
        oldest = min(map(key_of, list_checkpoints(self.checkpoints)), default=key_of(path)).generation
        self.ancestors = (*(a for a in checkpoint.ancestors if a.generation >= oldest), key_of(path))
        self.lines_from = self.lines_of(checkpoint.progress.generation)
        return self.as_opened(checkpoint)

    def advance(self, update: int) -> None:
        """Claim the next generation for the learner that holds the current one and has made `update`. Raises `Fenced`
        if another learner claimed it."""
        self.check()
        self._require_newest(self._store.current_generation())
        before = self.generation
        try:
            self._claim(before + 1, (*self.ancestors, CheckpointKey(before, update)))
        except FileExistsError as error:
            raise Fenced(f"generation {before} is closed: another learner claimed generation {before + 1}") from error

    def check(self) -> None:
        """Raise `Fenced` if a later generation has written to the folder."""
        self._require_newest(self.latest())

    def fence(self) -> None:
        """Raise `Fenced` if the store or the folder knows a later generation. If the store is unreachable, the file may
        be written: that is harmless, see `learner.run.checkpoint`."""
        with suppress(Unreachable):
            self._require_newest(self._store.current_generation())
        self.check()

    def _require_newest(self, latest: int) -> None:
        if latest > self.generation:
            raise Fenced(f"generation {self.generation} is closed: generation {latest} is open")

    def began(self, version: int, memory: LedgerMemory) -> None:
        """Record that the claimed generation is open and begins with `version`; remove the folders of earlier ones."""
        opened = {"version": version, "memory": memory.to_dict()}
        write_durably(self.folder / OPENED, json.dumps(opened).encode(), replace=True)
        for number in self.claimed():
            if number < self.generation:
                shutil.rmtree(self.folder_of(number), ignore_errors=True)

    def newest_sound(self) -> Path | None:
        """Return the newest checkpoint of this lineage whose last update had finite gradients."""
        return newest_sound(self.checkpoints, lambda key: in_lineage(key, self.generation, self.ancestors))

    def _claim(self, number: int, ancestors: Ancestors = ()) -> None:
        self.make(number)
        self.generation, self.ancestors = number, ancestors
        self._store.claim_generation(number)


def start_from(path: Path) -> None:
    """Continue a run from one of its older checkpoints, in a new generation; later updates are abandoned. Raises
    `UserError`."""
    run = LineageFolder(path.parent.parent)
    checkpoint = run.as_opened(load_checkpoint(path))
    number = run.latest()
    while True:
        number = 1 + max(number, checkpoint.progress.generation)
        with suppress(FileExistsError):
            run.make(number)
            break
    progress, key = checkpoint.progress, key_of(path)
    copy_lines(run.lines_of(progress.generation), run.folder_of(number), progress.update)
    write_checkpoint(
        run.checkpoints,
        replace(checkpoint, progress=replace(progress, generation=number), ancestors=(*checkpoint.ancestors, key)),
    )


def forget_untrained(run_dir: Path) -> None:
    """Remove the checkpoints of a run without updates, so that it may start with other settings."""
    found = list_checkpoints(run_dir / "checkpoints")
    if not any(key_of(path).update for path in found):
        for path in found:
            path.unlink(missing_ok=True)


def has_trained(run_dir: Path) -> bool:
    """Whether the run has a checkpoint after at least one update."""
    return any(key_of(path).update for path in list_checkpoints(run_dir / "checkpoints"))
