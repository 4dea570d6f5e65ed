"""`tamiyo study FILE`: run trainings and evaluations one after the other, and skip finished ones.

Every training and every evaluation is a `tamiyo` command of its own, so that it can be repeated alone; which one is
kept in its record. An interrupted study continues the training that was under way.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from actors.config import ConfigError
from actors.errors import UserError
from deploy.config.convert import suggest
from deploy.config.schema import PRESETS, default_preset
from deploy.config.user_file import read_yaml
from deploy.config.yaml import overlay, to_yaml

POLICY, RECORD, CURVE = "policy.safetensors", "record.json", "curve.csv"
CELLS = "cells"
"""Folder of the played episodes that all evaluations of a study share."""
KEYS = {
    "the file": {"name", "preset", "settings", "root", "results", "trainings", "evaluations"},
    "a training": {"name", "seeds", "minutes", "settings", "keep", "note"},
    "an evaluation": {"name", "policies", "blind", "also", "flags", "note"},
}


@dataclass(frozen=True)
class Training:
    """One policy: a name of the list, and a seed."""

    group: str
    seed: int
    minutes: float
    settings: Mapping[str, Any]
    keep: bool

    @property
    def name(self) -> str:
        return f"{self.group}-{self.seed}"


@dataclass(frozen=True)
class StudyEvaluation:
    name: str
    policies: tuple[str, ...]  # groups
    blind: tuple[str, ...] = ()
    also: tuple[str, ...] = ()  # each a line of the table
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Study:
    name: str
    preset: str
    root: Path  # of the runs
    results: Path
    trainings: tuple[Training, ...]
    evaluations: tuple[StudyEvaluation, ...] = ()

    def folder(self, entry: str) -> Path:
        """Where an entry's record is kept: small files that belong into a repository."""
        return self.results / self.name / entry

    def run_dir(self, training: str) -> Path:
        """Where a training's run, its policy and its curve are: large, and made again from the record."""
        return self.root / f"{self.name}-{training}"

    def members(self, group: str) -> list[Training]:
        return [t for t in self.trainings if t.group == group]


def read_study(path: Path) -> Study:
    """Read and validate a study. Raises `UserError`."""
    data = read_yaml(path)
    try:
        return _study(data, path)
    except (ConfigError, KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
        raise UserError(f"{path}: {reason}") from error


def _study(data: Any, path: Path) -> Study:
    _known(data, "the file")
    common = data.get("settings") or {}
    preset = data.get("preset") or default_preset(common)
    if preset not in PRESETS:
        raise ConfigError(f"unknown preset {preset!r}{suggest(str(preset), sorted(PRESETS))}")
    trainings: list[Training] = []
    for entry in data["trainings"]:
        _known(entry, "a training")
        settings = _merged(common, entry.get("settings") or {})
        overlay(PRESETS[preset], settings)  # reject invalid settings now, not hours later
        options = (float(entry["minutes"]), settings, bool(entry.get("keep", False)))
        trainings += [Training(entry["name"], int(seed), *options) for seed in entry["seeds"]]
    groups = {t.group for t in trainings}
    evaluations = []
    for entry in data.get("evaluations") or []:
        _known(entry, "an evaluation")
        lists = {k: tuple(map(str, entry.get(k) or ())) for k in ("policies", "blind", "also", "flags")}
        for group in (*lists["policies"], *lists["blind"], *lists["also"]):
            if group not in groups:
                raise ConfigError(f"evaluation {entry['name']!r} names {group!r}{suggest(group, sorted(groups))}")
        evaluations.append(StudyEvaluation(entry["name"], **lists))
    names = [t.name for t in trainings] + [e.name for e in evaluations]
    twice = {n for n in names if names.count(n) > 1}
    if twice:
        raise ConfigError(f"there are two entries named {sorted(twice)[0]!r}")
    root, results = Path(data.get("root", "runs")), Path(data.get("results", "results"))
    return Study(data.get("name", path.stem), preset, root, results, tuple(trainings), tuple(evaluations))


def _known(entry: Any, what: str) -> None:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{what} must hold keys and values, not a {type(entry).__name__}")
    for key in entry:
        if key not in KEYS[what]:
            raise ConfigError(f"{what} has no {key!r}{suggest(str(key), sorted(KEYS[what]))}")


def _merged(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    return {s: {**(common.get(s) or {}), **(own.get(s) or {})} for s in dict.fromkeys((*common, *own))}


def run_study(path: Path, only: Sequence[str] = (), list_only: bool = False, console: Console | None = None) -> int:
    """Run all entries that are not finished. Returns 0, or the exit status of the command that failed."""
    console = console or Console(highlight=False)
    study = read_study(path)
    entries: list[Training | StudyEvaluation] = [*study.trainings, *study.evaluations]
    known = {e.name for e in entries} | {t.group for t in study.trainings}
    for name in only:
        if name not in known:
            raise UserError(f"{path} has no entry {name!r}{suggest(name, sorted(known))}")
    if list_only:
        console.print(_listing(study))
        return 0
    for entry in entries:
        if only and entry.name not in only and getattr(entry, "group", "") not in only:
            continue
        if _finished(study, entry):
            console.print(f"{entry.name}: already finished", style="dim")
            continue
        for due in (*_missing(study, entry), entry):
            console.print(f"{due.name}", style="bold")
            status = _train(study, due) if isinstance(due, Training) else _evaluate(study, due)
            if status:
                console.print(f"{due.name}: ended with status {status}; `tamiyo study {path}` continues from here")
                return status
    return 0


def _missing(study: Study, entry: Training | StudyEvaluation) -> list[Training]:
    """Trainings that an evaluation needs and that are left, or whose policies were not kept and are gone."""
    from actors.policy.saved import list_checkpoints

    def there(training: Training) -> bool:
        path = _policy(study, training)
        return _finished(study, training) and (path.is_file() or bool(list_checkpoints(path / "checkpoints")))

    return [t for t in _needed(study, entry) if not there(t)]


def _needed(study: Study, entry: Training | StudyEvaluation) -> list[Training]:
    if isinstance(entry, Training):
        return []
    return [t for group in (*entry.policies, *entry.blind, *entry.also) for t in study.members(group)]


def _finished(study: Study, entry: Training | StudyEvaluation) -> bool:
    record = study.folder(entry.name) / RECORD
    return record.is_file() and json.loads(record.read_text())["fingerprint"] == _fingerprint(study, entry)


def _fingerprint(study: Study, entry: Training | StudyEvaluation) -> str:
    """Return a hash of an entry's settings. An entry whose settings have changed runs again."""
    if isinstance(entry, Training):
        resolved = to_yaml(overlay(PRESETS[study.preset], entry.settings))  # a preset may change as well
        settings = [resolved, repr(replace(entry, settings={}))]
    else:
        settings = [repr(entry), *(_fingerprint(study, t) for t in _needed(study, entry))]
    return hashlib.sha256("\n".join(settings).encode()).hexdigest()[:16]


def _train(study: Study, entry: Training) -> int:
    run_dir, folder = study.run_dir(entry.name), study.folder(entry.name)
    folder.mkdir(parents=True, exist_ok=True)
    run = {"name": run_dir.name, "root": str(study.root), "seed": entry.seed}
    settings = _merged(entry.settings, {"run": run, "learner": {"max_seconds": entry.minutes * 60}})
    config, before = to_yaml(overlay(PRESETS[study.preset], settings)), run_dir / "config.yaml"
    (folder / "config.yaml").write_text(config)
    command = ["train", "--preset", study.preset, "--config", str(folder / "config.yaml")]
    if before.is_file() and before.read_text() != config:
        _put_aside(run_dir)
    fresh = not before.is_file()
    started = time.time()
    status = _tamiyo(command if fresh else ["train", "--resume", str(run_dir)])
    if status:
        return status
    from learner.run.checkpoint import load_checkpoint, save_policy

    checkpoint = load_checkpoint(run_dir)
    if entry.keep:
        save_policy(checkpoint, run_dir / POLICY)
    outcome = {
        "run": str(run_dir),
        "minutes": round(checkpoint.progress.elapsed_s / 60, 2),
        "updates": checkpoint.progress.update,
        "episodes": checkpoint.progress.episodes_trained,
        "env_steps": checkpoint.progress.env_steps,
        "last": _last_metrics(run_dir),
    }
    _write_curve(run_dir, run_dir / CURVE)
    _record(study, entry, command, started, outcome)
    return 0


def _put_aside(run_dir: Path) -> None:
    """A run that other settings trained is no beginning of this one."""
    free = (run_dir.with_name(f"{run_dir.name}-before-{n}") for n in itertools.count(1))
    run_dir.rename(next(path for path in free if not path.exists()))


def _evaluate(study: Study, entry: StudyEvaluation) -> int:
    folder = study.folder(entry.name)
    folder.mkdir(parents=True, exist_ok=True)
    command = ["evaluate", "--checkpoint", *_paths(study, entry.policies)]
    if entry.blind:
        command += ["--blind", *_paths(study, entry.blind)]
    if entry.also:
        command += ["--also", *(f"{g}={path}" for g in entry.also for path in _paths(study, [g]))]
    cells = study.folder(CELLS)
    command += ["--out", str(folder), "--cells", str(cells), *entry.flags]
    started = time.time()
    status = _tamiyo(command)
    if status:
        return status
    from deploy.evaluation.cells import CellStore

    results = json.loads((folder / "results.json").read_text())
    outcome = {"core_minutes": round(CellStore(cells).seconds() / 60, 2)}  # of all cells, whenever they were played
    _record(study, entry, command, started, outcome | {"headline": results["headline"], "targets": results["targets"]})
    return 0


def _paths(study: Study, groups: Sequence[str]) -> Iterator[str]:
    yield from (str(_policy(study, training)) for g in groups for training in study.members(g))


def _policy(study: Study, training: Training) -> Path:
    """The policy that the run kept, else the run itself."""
    run_dir = study.run_dir(training.name)
    return run_dir / POLICY if (run_dir / POLICY).is_file() else run_dir


def _tamiyo(command: Sequence[str]) -> int:
    return subprocess.run([sys.executable, "-m", "deploy.cli", *command], check=False).returncode


def _record(
    study: Study, entry: Training | StudyEvaluation, command: Sequence[str], started: float, outcome: Mapping[str, Any]
) -> None:
    content = {
        "name": entry.name,
        "command": shlex.join(["tamiyo", *command]),
        "fingerprint": _fingerprint(study, entry),
        "wall_minutes": round((time.time() - started) / 60, 2),
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        **outcome,
    }
    (study.folder(entry.name) / RECORD).write_text(json.dumps(content, indent=1) + "\n")


def _last_metrics(run_dir: Path) -> dict[str, Any]:
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1]) if lines else {}
    return {k: v for k, v in last.items() if k in ("update", "return_mean", "paid_mean", "elapsed_s")}


def _write_curve(run_dir: Path, path: Path, points: int = 60) -> None:
    """What an episode paid over the run's minutes, averaged over equally many updates each."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    paid = np.array([(x["elapsed_s"] / 60, x["paid_mean"]) for x in lines if x.get("paid_mean") is not None])
    parts = [part.mean(0) for part in np.array_split(paid, min(points, len(paid)))] if len(paid) else []
    path.write_text("".join(f"{line}\n" for line in ("minutes,paid", *(f"{m:.2f},{p:.3f}" for m, p in parts))))


def _listing(study: Study) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("entry", "minutes", "state"):
        table.add_column(name)
    entries: list[Training | StudyEvaluation] = [*study.trainings, *study.evaluations]
    for entry in entries:
        minutes = f"{entry.minutes:g}" if isinstance(entry, Training) else ""
        table.add_row(entry.name, minutes, "done" if _finished(study, entry) else "left")
    left = sum(t.minutes for t in study.trainings if not _finished(study, t))
    table.add_row("[dim]left[/]", f"{left:g}", "[dim]minutes of training[/]")
    return table
