"""`Decision`: one line of the log of what was asked, what was done, and why."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Decision:
    epoch: int  # epochs trained before it
    op: str  # what was done
    slot: str  # "" for WAIT
    blueprint: str  # of the slot, "" where it is empty
    asked: str  # what the policy wanted; "" where it gave no answer
    reason: str  # why something else was done; "" where nothing else was
    loss: float
    accuracy: float | None  # points
    added_params: int
    growth_ratio: float
    stages: list[str]  # by slot, when the next epoch begins
    alphas: list[float]
    blueprints: list[str]
    slots: list[str]
    policy_version: int  # -1 where it gave no answer
    value: float | None  # what the policy expects

    @property
    def waited(self) -> bool:
        return self.op == "WAIT"


class DecisionLog:
    """All of them in memory; and one a line, as JSON, where a file is given."""

    def __init__(self, path: str | Path | None) -> None:
        self.decisions: list[Decision] = []
        self._path = None if path is None else Path(path)

    def append(self, decision: Decision) -> None:
        self.decisions.append(decision)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(decision)) + "\n")


def read_log(path: Path) -> list[Decision]:
    """The decisions of a file, oldest first."""
    rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    return [Decision(**row) for row in rows]
