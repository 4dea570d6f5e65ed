"""Read a run folder for the report. Missing optional files are None."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from actors.env.episode.timeline import Timeline
from actors.errors import UserError
from actors.types.episode import EndReason
from deploy.report.statistics import Floats, Interval, mean_interval, stratified_mean

Record = dict[str, Any]
BINS = 600  # of updates, for the learning curve


class References(NamedTuple):
    """Returns of the learned policy and the baselines on the same n seeds."""

    tasks: list[str]
    learned: list[float]
    baselines: dict[str, list[float]]  # by name, the stronger one first; never grow exists for seed hosts only
    cut_at: int  # step at which episodes were cut; 0 if all were played to their end

    def by_task(self, returns: list[float]) -> dict[str, list[float]]:
        """The returns of one policy by task."""
        found: dict[str, list[float]] = {}
        for task, value in zip(self.tasks, returns, strict=True):
            found.setdefault(task, []).append(value)
        return found


class RecordedEpisode(NamedTuple):
    """The example episode of a run."""

    timeline: Timeline
    never_grow_accuracy: list[float]  # [T + 1] points, of the same host without growth
    policy_version: int


class EpisodeStatistics:
    """Counts of all episodes, and moments of the returns of whole ones: its memory does not grow with the run."""

    def __init__(self, records: Iterable[Record], last_update: int) -> None:
        """Gather the records of a run with so many updates."""
        self._updates_per_bin = 1 + last_update // BINS
        self.count = self.steps = 0
        self.whole = 0  # that are not segments; a segment has the return up to its end
        self.moments: dict[str, Floats] = {}
        """By task: number, sum and sum of squares of the returns in each bin, `[BINS, 3]`."""
        for record in records:
            self.count += 1
            self.steps += int(record["steps"])
            value = float(record["return"])
            if record.get("end_reason") != EndReason.CUT:
                self.whole += 1
                at = min(int(record["update"]) // self._updates_per_bin, BINS - 1)
                self.moments.setdefault(record["task_id"], np.zeros((BINS, 3)))[at] += (1.0, value, value * value)

    def rolling_returns(self, updates: Floats, window: int) -> Floats:
        """Return the stratified mean and its band over the whole episodes of the last `window` updates,
        `[3, updates]`; NaN where there are none."""
        by_task = np.stack(list(self.moments.values()))  # [tasks, BINS, 3]
        until = np.concatenate([np.zeros((len(by_task), 1, 3)), by_task.cumsum(1)], 1)
        bins = (updates // self._updates_per_bin).astype(np.int64).clip(0, BINS - 1)
        first = bins[np.maximum(np.arange(len(bins)) - window + 1, 0)]
        return stratified_mean(*np.moveaxis(until[:, bins + 1] - until[:, first], -1, 0))


@dataclass(frozen=True)
class RunFolder:
    """The files of a run."""

    path: Path
    settings: str  # text of config.yaml
    metrics: list[Record]  # one per update
    episodes: EpisodeStatistics  # that were trained on
    references: References | None
    why_no_references: str
    episode: RecordedEpisode | None

    @cached_property
    def comparisons(self) -> dict[str, Interval]:
        """The paired difference of the learned policy from each baseline; empty without two references."""
        found = self.references
        if found is None or len(found.learned) < 2:
            return {}
        differences = {name: zip(found.learned, own, strict=True) for name, own in found.baselines.items()}
        return {name: mean_interval([a - b for a, b in pairs]) for name, pairs in differences.items()}

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.resolve().name

    @property
    def gym_id(self) -> str:
        """Id of the Gymnasium environment; empty for seed hosts."""
        return str(self.section("gym").get("id") or "")

    def section(self, name: str) -> Record:
        """The settings of a section; none if the file is damaged."""
        try:
            return dict(yaml.safe_load(self.settings)[name])
        except (yaml.YAMLError, ValueError, TypeError, LookupError, RecursionError):
            return {}

    @property
    def unit(self) -> str:
        """Unit of returns: points of validation accuracy for seed hosts, unknown (empty) otherwise."""
        return "" if self.gym_id else "points"

    @property
    def per_step(self) -> bool:
        """Whether no episode of the run ended, so that it has mean rewards of a step but no returns."""
        return not self.episodes.whole

    def series(self, name: str) -> Floats:
        """The values of a metric by update `[updates]`; NaN if an update did not report it."""
        values = (record.get(name) for record in self.metrics)
        return np.array([np.nan if v is None else float(v) for v in values], dtype=np.float64)

    def families(self, prefix: str) -> dict[str, Floats]:
        """The series of all metrics `prefix/NAME`, by NAME in order of first appearance."""
        names = {key: None for record in self.metrics for key in record if key.startswith(f"{prefix}/")}
        return {key.partition("/")[2]: self.series(key) for key in names}


def read_run(path: Path) -> RunFolder:
    """Read a run folder. Raises `UserError` if it does not exist or a file is no JSON, other errors where one holds
    something else."""
    if not path.is_dir():
        raise UserError(f"run folder {path} does not exist")
    if not (path / "metrics.jsonl").is_file():
        raise UserError(f"{path} is not a run folder (it has no metrics.jsonl)")
    settings = path / "config.yaml"
    references, timeline = _object(path / "references.json"), _object(path / "timeline.json")
    episode = None
    if timeline:
        seen = Timeline(**{f.name: timeline[f.name] for f in fields(Timeline) if f.name in timeline})
        episode = RecordedEpisode(seen, timeline["never_grow_accuracy"], timeline["policy_version"])
    metrics = list(_lines(path / "metrics.jsonl"))
    last_update = int(metrics[-1]["update"]) if metrics else 0
    return RunFolder(
        path=path,
        settings=settings.read_text(encoding="utf-8") if settings.is_file() else "",
        metrics=metrics,
        episodes=EpisodeStatistics(_lines(path / "episodes.jsonl"), last_update),
        references=_references(references),
        why_no_references=references.get("why_none", "the run ended before the baselines were played"),
        episode=episode,
    )


def _references(data: Record) -> References | None:
    if not data.get("learned"):
        return None
    named = {"never grow": data.get("never_grow"), "random": data["random"]}
    baselines = {name: returns for name, returns in named.items() if returns is not None}
    return References(data["tasks"], data["learned"], baselines, data.get("cut_at", 0))


def _object(path: Path) -> Record:
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}") from error


def _lines(path: Path) -> Iterator[Record]:
    """Yield the records of a JSONL file; an incomplete last line, left by a killed run, is ignored."""
    if not path.is_file():
        return
    damage = ""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if damage:
                raise UserError(f"{path}, line {number - 1} is damaged: {damage}")
            try:
                record = dict(json.loads(line))
            except (ValueError, TypeError, RecursionError) as error:
                damage = str(error)
            else:
                yield record
