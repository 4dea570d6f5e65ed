"""Where an update's metrics go: JSON lines and TensorBoard. Every name must be declared in actors/metrics.py."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from actors.metrics import lookup


def _update_of(line: str) -> float:
    """The update that a line is of; infinite for one that a dying process left torn, whose update is made again."""
    try:
        return float(json.loads(line)["update"])
    except json.JSONDecodeError:
        return float("inf")


class MetricsLog:
    """`metrics.jsonl` (a line per update), `episodes.jsonl` (a line per episode) and `tensorboard/` of one run."""

    def __init__(self, run_dir: Path, resume_update: int) -> None:
        """Lines of updates after `resume_update` belong to a lineage that was given up, and are removed."""
        from torch.utils.tensorboard import SummaryWriter

        run_dir.mkdir(parents=True, exist_ok=True)
        paths = [run_dir / "metrics.jsonl", run_dir / "episodes.jsonl"]
        for path in paths:
            if path.exists():
                lines = path.read_text().splitlines()
                kept = [line for line in lines if _update_of(line) <= resume_update]
                path.write_text("".join(line + "\n" for line in kept))
        self._metrics, self._episodes = (path.open("a", buffering=1) for path in paths)
        self._tensorboard = SummaryWriter(str(run_dir / "tensorboard"), purge_step=resume_update + 1)

    def write(self, update: int, metrics: Mapping[str, float], episodes: Sequence[Mapping[str, Any]]) -> None:
        for name in metrics:
            lookup(name)
        self._metrics.write(json.dumps({"update": update, **metrics}) + "\n")
        self._episodes.writelines(json.dumps({"update": update, **row}) + "\n" for row in episodes)
        for name, value in metrics.items():
            self._tensorboard.add_scalar(name, value, update)

    def close(self) -> None:
        self._tensorboard.close()
        self._metrics.close()
        self._episodes.close()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
