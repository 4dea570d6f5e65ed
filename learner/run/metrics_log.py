"""Where an update's metrics go: JSON lines, TensorBoard and, if wanted, Weights & Biases.

Every name must be declared in actors.metrics.registry. The files are in a folder of the learner's own (see
`learner.run.lineage`); the run's folder contains links to them.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from actors.metrics.registry import FAMILIES, lookup
from actors.transport.base import Fenced
from learner.run.disk import NO_LINKS
from learner.run.wandb_log import WandbLog

FILES = ("metrics.jsonl", "episodes.jsonl")
UPDATE = re.compile(rb'\{"update": (\d+)[,}]')  # the start of every line
GROUPS = {"1_return": ("return_mean", "reward_mean"), "2_loss": ("loss_policy", "loss_value")}
"""What is looked for first in TensorBoard, which sorts its cards by name; the update, heads and service
follow."""
SERVICE = {"ledger", "actor_ledger", "wait_share", "bottleneck"}
Retry = Callable[[Callable[[], None]], None]
"""Calls a write, and repeats it while the disk is full."""


def card(name: str) -> str:
    """Return the name of a metric in TensorBoard, with its group."""
    family, _, member = name.partition("/")
    if not member or family not in FAMILIES:
        return next((f"{group}/{name}" for group, names in GROUPS.items() if name in names), f"3_update/{name}")
    return f"{'5_service' if family in SERVICE else '4_heads'}/{name}"


def copy_lines(source: Path, folder: Path, last: int, retry: Retry = lambda write: write()) -> None:
    """Copy the lines of both files in `source` up to update `last` to another folder. They are in the order of updates;
    later ones belong to an abandoned lineage."""
    for name in FILES:
        retry(partial(_copy, source / name, folder / name, last))


def _copy(source: Path, path: Path, last: int) -> None:
    with path.open("wb") as file:
        if source.exists():
            with source.open("rb") as lines:
                for line in lines:
                    found = UPDATE.match(line)
                    if not found or not line.endswith(b"\n") or int(found[1]) > last:
                        return  # also at an incomplete line of a process that died, whose update is repeated
                    file.write(line)


class _Lines:
    """A file that grows by whole lines only, even if a write was cut short and is repeated."""

    def __init__(self, path: Path, retry: Retry) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._retry = retry

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        left = "".join(json.dumps(record) + "\n" for record in records).encode()

        def write() -> None:
            nonlocal left
            while left:
                left = left[os.write(self._file, left) :]

        self._retry(write)

    def are_in(self, path: Path) -> bool:
        """Whether `path` refers to this file."""
        try:
            return os.path.samestat(path.stat(), os.fstat(self._file))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        os.close(self._file)


def _link(path: Path, name: Path) -> None:
    try:
        os.link(path, name)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        name.symlink_to(os.path.relpath(path, name.parent))


class MetricsLog:
    """The logs of one run: `metrics.jsonl` (a line per update), `episodes.jsonl` (a line per episode) and
    `tensorboard/`."""

    def __init__(
        self,
        run_dir: Path,
        folder: Path,
        update: int,
        retry: Retry = lambda write: write(),
        wandb: str | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the logs in `folder`, which end with `update`, and link them in the run folder. `wandb` is a Weights &
        Biases project. `check` raises if another learner has taken over the run."""
        self._run_dir, self._check, self._retry = run_dir, check, retry
        self._metrics, self._episodes = (_Lines(folder / name, retry) for name in FILES)
        self._show()
        self._tensorboard = self._open_tensorboard(update)
        self._wandb = WandbLog(wandb, run_dir) if wandb else None

    def _open_tensorboard(self, update: int) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self._run_dir / "tensorboard"), purge_step=update + 1)

    def move(self, folder: Path, update: int) -> None:
        """Continue in another folder, with a copy of all lines up to `update`."""
        copy_lines(self._metrics.path.parent, folder, update, self._retry)
        before = (self._metrics, self._episodes)
        self._metrics, self._episodes = (_Lines(folder / name, self._retry) for name in FILES)
        for lines in before:
            lines.close()
        self._show()

    def _show(self) -> None:
        """Link the files in the run folder to these. A learner fenced meanwhile may have linked its own since."""
        for lines in (self._metrics, self._episodes):
            shown = self._run_dir / lines.path.name
            if lines.are_in(shown):
                continue
            self._check()
            name = self._run_dir / f".{lines.path.name}.{secrets.token_hex(8)}"
            self._retry(partial(_link, lines.path, name))
            name.replace(shown)

    def write_episodes(self, update: int, episodes: Sequence[Mapping[str, Any]]) -> None:
        self._episodes.append([{"update": update, **record} for record in episodes])
        self._show()

    def write(self, update: int, metrics: Mapping[str, float]) -> None:
        for name in metrics:
            lookup(name)
        self._metrics.append([{"update": update, **metrics}])
        if self._wandb is not None:
            self._wandb.write(update, metrics)
        try:
            for name, value in metrics.items():
                self._tensorboard.add_scalar(card(name), value, update)
        except OSError:  # its writer died on a full disk: only part of the curves is lost
            self._retry(lambda: setattr(self, "_tensorboard", self._open_tensorboard(update - 1)))

    def close(self) -> None:
        with suppress(Fenced, OSError):
            self._show()
        if self._wandb is not None:
            self._wandb.close()
        with suppress(OSError):  # a full disk that ended its writer has been reported by then
            self._tensorboard.close()
        self._metrics.close()
        self._episodes.close()
