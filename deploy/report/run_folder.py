"""What a run left on disk, read for the report. Optional files are None where they are missing."""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml
from numpy.typing import NDArray

from actors.errors import UserError

Row = dict[str, Any]


@dataclass(frozen=True)
class References:
    """Returns of the policies on the same seeds; all arrays have length n. Only seed hosts have a never-grow."""

    tasks: list[str]
    learned: list[float]
    random: list[float]
    never_grow: list[float] | None = None

    @property
    def baselines(self) -> dict[str, list[float]]:
        """What the learned policy is compared with, by name."""
        return {"random": self.random} | ({} if self.never_grow is None else {"never grow": self.never_grow})


@dataclass(frozen=True)
class Timeline:
    """One episode of T steps in a host with S slots, epoch by epoch."""

    task: str
    seed: int
    policy_version: int
    episode_return: float
    accuracy: list[float]  # [T + 1] points
    never_grow_accuracy: list[float]  # [T + 1] points
    ops: list[str]  # [T]
    op_slots: list[int]  # [T], -1 where the op concerns none
    stages: list[list[str]]  # [S][T]
    alphas: list[list[float]]  # [S][T]
    blueprints: list[list[str]]  # [S][T], empty where the slot is
    growth_ratio: list[float]  # [T]


Built = TypeVar("Built", References, Timeline)


@dataclass(frozen=True)
class RunFolder:
    path: Path
    settings: str  # config.yaml as text
    metrics: list[Row]  # one per update
    episodes: list[Row]  # one per trained episode
    references: References | None
    timeline: Timeline | None

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def gym_id(self) -> str:
        """The Gymnasium environment that was trained on; empty for seed hosts."""
        try:
            settings = yaml.safe_load(self.settings)
        except yaml.YAMLError:
            return ""
        gym = settings.get("gym") if isinstance(settings, dict) else None
        return str(gym.get("id") or "") if isinstance(gym, dict) else ""

    @property
    def unit(self) -> str:
        """Of returns: points of validation accuracy, or whatever the environment pays."""
        return "" if self.gym_id else "points"

    def series(self, name: str) -> NDArray[np.float64]:
        """A metric per update; NaN where an update did not report it."""
        values = (row.get(name) for row in self.metrics)
        return np.array([np.nan if v is None else float(v) for v in values], dtype=np.float64)

    def families(self, prefix: str) -> dict[str, NDArray[np.float64]]:
        """All metrics `prefix/NAME` as NAME to series, in order of first appearance."""
        names = {key: None for row in self.metrics for key in row if key.startswith(f"{prefix}/")}
        return {key.partition("/")[2]: self.series(key) for key in names}


def read_run(path: Path) -> RunFolder:
    """Reads a run folder; raises UserError where there is none."""
    if not path.is_dir():
        raise UserError(f"there is no run folder {path}")
    if not (path / "metrics.jsonl").is_file():
        raise UserError(f"{path} holds no metrics.jsonl, so it is not the folder of a run")
    settings = path / "config.yaml"
    references, timeline = _object(path / "references.json"), _object(path / "timeline.json")
    return RunFolder(
        path=path,
        settings=settings.read_text(encoding="utf-8") if settings.is_file() else "",
        metrics=_lines(path / "metrics.jsonl"),
        episodes=_lines(path / "episodes.jsonl"),
        references=_build(References, references) if references and references["learned"] else None,
        timeline=_build(Timeline, {**timeline, "episode_return": timeline["return"]}) if timeline else None,
    )


def _build(kind: type[Built], data: Row) -> Built:
    """A dataclass from those keys of `data` that it has; files may hold more."""
    return kind(**{f.name: data[f.name] for f in fields(kind) if f.name in data or f.default is MISSING})


def _object(path: Path) -> Row | None:
    if not path.is_file():
        return None
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error


def _lines(path: Path) -> list[Row]:
    """Rows of a JSONL file; a torn last line, which a killed run leaves, is passed over."""
    if not path.is_file():
        return []
    rows: list[Row] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):
                raise UserError(f"{path}, line {number} is damaged: {error}") from error
    return rows
