"""Where an update's metrics go: JSON lines, TensorBoard and, if wanted, Weights & Biases.

Every name must be declared in actors/metrics/registry.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from actors.metrics.registry import lookup
from learner.wandb_log import WandbLog

Retry = Callable[[Callable[[], None]], None]
"""Runs a write, again and again while the disk is full."""


def _update_of(line: str) -> float:
    """The update that a line is of; infinite for one that a dying process left torn, whose update is made again."""
    try:
        return float(json.loads(line)["update"])
    except json.JSONDecodeError:
        return float("inf")


def _rewrite(path: Path, lines: Sequence[str], retry: Retry) -> None:
    partial = path.with_suffix(".partial")

    def write() -> None:
        partial.write_text("".join(line + "\n" for line in lines))

    retry(write)
    partial.replace(path)


class _Lines:
    """A file that only ever grows by whole lines, also when a write to it was cut short and has to be repeated."""

    def __init__(self, path: Path, retry: Retry) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._retry = retry

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        left = "".join(json.dumps(row) + "\n" for row in rows).encode()

        def write() -> None:
            nonlocal left
            while left:
                left = left[os.write(self._file, left) :]

        self._retry(write)

    def close(self) -> None:
        os.close(self._file)


class MetricsLog:
    """`metrics.jsonl` (a line per update), `episodes.jsonl` (a line per episode) and `tensorboard/` of one run."""

    def __init__(
        self, run_dir: Path, resume_update: int, retry: Retry = lambda write: write(), wandb: str | None = None
    ) -> None:
        """Lines of updates after `resume_update` belong to a lineage that was given up, and are removed. `wandb` is a
        project there."""
        run_dir.mkdir(parents=True, exist_ok=True)
        paths = [run_dir / "metrics.jsonl", run_dir / "episodes.jsonl"]
        for path in paths:
            if path.exists():
                lines = path.read_text().splitlines()
                kept = [line for line in lines if _update_of(line) <= resume_update]
                if len(kept) < len(lines):
                    _rewrite(path, kept, retry)
        self._metrics, self._episodes = (_Lines(path, retry) for path in paths)
        self._folder, self._retry = run_dir / "tensorboard", retry
        self._tensorboard = self._open_tensorboard(resume_update)
        self._wandb = WandbLog(wandb, run_dir) if wandb else None

    def _open_tensorboard(self, update: int) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self._folder), purge_step=update + 1)

    def write_episodes(self, update: int, episodes: Sequence[Mapping[str, Any]]) -> None:
        self._episodes.append([{"update": update, **row} for row in episodes])

    def write(self, update: int, metrics: Mapping[str, float]) -> None:
        for name in metrics:
            lookup(name)
        self._metrics.append([{"update": update, **metrics}])
        if self._wandb is not None:
            self._wandb.write(update, metrics)
        try:
            for name, value in metrics.items():
                self._tensorboard.add_scalar(name, value, update)
        except OSError:  # its writer died on a full disk some time ago, and takes no more: what is lost is its curve
            self._retry(lambda: setattr(self, "_tensorboard", self._open_tensorboard(update - 1)))

    def close(self) -> None:
        if self._wandb is not None:
            self._wandb.close()
        with suppress(OSError):  # a full disk that ended its writer is told of by then
            self._tensorboard.close()
        self._metrics.close()
        self._episodes.close()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
