"""`tamiyo study FILE --tables PAGE`: update the tables and figures of a page from the finished entries of a study.

They stand in the page between `<!-- made KIND NAME -->` and `<!-- end -->`: `targets`, `lines`, `families` and
`widths` of the evaluation NAME, `against` (what sets its other lines apart from its policies), `picture NAME/FILE` of
it, `curve` of the training NAME, and `costs` of the whole study. Pictures go to a folder beside the page that is named
like it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from actors.env.rendering.palette import GRID, STYLE
from actors.env.rendering.timeline_chart import WIDTH_IN
from actors.errors import UserError
from deploy.config.reference import table
from deploy.evaluation.page import FIGURES, SHOWN, span
from deploy.evaluation.players import POLICY
from deploy.evaluation.study import CURVE, RECORD, Study
from deploy.evaluation.targets import EvaluationTarget
from deploy.report.statistics import Interval

BLOCK = re.compile(r"(<!-- made (\w+) ?([\w/.-]*) -->\n).*?(<!-- end -->)", re.DOTALL)


def write_tables(study: Study, page: Path) -> int:
    """Update all marked tables. Returns their number; raises `UserError` if results are missing."""

    def made(found: re.Match[str]) -> str:
        start, kind, name, end = found.groups()
        if kind not in KINDS:
            raise UserError(f"{page}: unknown table {kind!r}: choose from {', '.join(KINDS)}")
        return f"{start}\n{KINDS[kind](study, name, page.with_suffix(''))}\n\n{end}"

    if not page.is_file():
        raise UserError(f"no page at {page}: write one, with `<!-- made costs -->` and `<!-- end -->` in it")
    text, count = BLOCK.subn(made, page.read_text(encoding="utf-8"))
    page.write_text(text, encoding="utf-8")
    return count


def targets(study: Study, name: str, folder: Path) -> str:
    found = _results(study, name)["targets"]
    rows = []
    for t in found:
        own = EvaluationTarget(**t | {"interval": Interval(**t["interval"]) if t["interval"] else None})
        rows.append((own.name, own.measured, own.goal, "**missed**" if own.met is False else own.verdict))
    return table(("target", "measured", "goal", ""), rows)


def lines(study: Study, name: str, folder: Path) -> str:
    found = _results(study, name)
    prices = [f"at price {w:g}" for w in found["prices"]]
    head = ("player", "n", "J over never growing", *prices, "policy's J over it", "P(better)", "test", "FLOPs")
    return table(head, (_line(line) for line in found["lines"]))


def _line(line: Mapping[str, Any]) -> tuple[str, ...]:
    better, test = line["improvement"], line["test_accuracy"]
    return (
        line["name"],
        str(line["policies"]),
        _span(line["over_never"]),
        *(f"{j:+.2f}" for j in line["by_price"].values()),
        _span(line["policy_over"]),
        "" if better is None else f"{better['mean']:.2f}",
        "" if test is None else f"{test:.1f}",
        f"x{line['training_flops']:.2f}",
    )


def families(study: Study, name: str, folder: Path) -> str:
    found = _results(study, name)["families"]
    shown = _shown(found)
    rows = [
        (
            f["family"],
            *(f"{f['over_never'][line]:+.2f}" for line in shown),
            _span(f["policy_over_best"]),
            "" if f["bare"] is None else f"{100 * f['bare']:.0f}%",
        )
        for f in found
    ]
    return table(("family", *shown, "policy over best schedule", "ends bare"), rows)


def widths(study: Study, name: str, folder: Path) -> str:
    found = _results(study, name)["widths"]
    shown = _shown(found)
    rows = [(w["widths"], str(w["episodes"]), *(f"{w['over_never'][line]:+.2f}" for line in shown)) for w in found]
    return table(("units", "episodes", *shown), rows)


def _shown(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [line for line in SHOWN if line in rows[0]["over_never"]]


def against(study: Study, name: str, folder: Path) -> str:
    """One row per recipe: its difference to the policies that it is compared with."""
    by_name = {line["name"]: line for line in _results(study, name)["lines"]}
    evaluation = next(e for e in study.evaluations if e.name == name)
    rows = [
        (
            group,
            str(line["policies"]),
            _span(line["over_never"]),
            "" if line["policy_over"] is None else _span(_negative(line["policy_over"])),
            "exploratory" if line["policies"] == 1 else "",
        )
        for group, line in [(evaluation.policies[0], by_name[POLICY]), *((g, by_name[g]) for g in evaluation.also)]
    ]
    return table(("recipe", "policies", "J over never growing", f"over {evaluation.policies[0]}", ""), rows)


def costs(study: Study, name: str, folder: Path) -> str:
    """Of all that is finished."""
    rows, total = [], 0.0
    for group in dict.fromkeys(t.group for t in study.trainings):
        records = _records(study, [t.name for t in study.members(group)])
        if records:
            minutes, cores = [r["wall_minutes"] for r in records], sum(r["wall_minutes"] * r["cores"] for r in records)
            each = f"{min(minutes):.1f}" + (f" to {max(minutes):.1f}" if len(records) > 1 else "")
            updates, episodes = records[0]["updates"], sum(r["episodes"] for r in records)
            rows.append((group, str(len(records)), f"{updates:,}", f"{episodes:,}", each, f"{cores:,.0f}"))
            total += cores
    played = max((r["core_minutes"] for r in _records(study, [e.name for e in study.evaluations])), default=0.0)
    rows.append(("evaluations", "", "", "", "", f"{played:,.0f}"))  # they share their cells
    total += played
    head = ("entry", "policies", "updates each", "episodes", "wall minutes each", "core-minutes")
    return table(head, [*rows, ("**all**", "", "", "", "", f"**{total:,.0f}**")])


def picture(study: Study, name: str, folder: Path) -> str:
    entry, _, file = name.partition("/")
    source = study.folder(entry) / file
    if not source.is_file():
        raise UserError(f"no figure at {source}: run the study's entry {entry} first")
    kept = folder / f"{entry}-{file}"
    folder.mkdir(exist_ok=True)
    shutil.copyfile(source, kept)
    spec = {f"{p.name}.png": p for p in FIGURES}[file]
    return f"![{spec.title}]({folder.name}/{kept.name})\n\n*{spec.caption}*"


def curve(study: Study, name: str, folder: Path) -> str:
    """What an episode paid, over the minutes of a training."""
    source = study.run_dir(name) / CURVE
    if not source.is_file():
        raise UserError(f"no curve at {source}: run the study's entry {name} first")
    minutes, paid = np.loadtxt(source, delimiter=",", skiprows=1, ndmin=2).T
    figure = Figure(figsize=(WIDTH_IN, 2.8), layout="constrained")
    with matplotlib.rc_context(STYLE):
        ax = figure.subplots()
        ax.plot(minutes, paid, color="#0072b2", lw=1.6)
        ax.axhline(0, color="#b6bec8", lw=0.8)
        ax.grid(axis="y", color=GRID)
        ax.set_xlim(0)
        ax.set_xlabel("minutes of PPO, after pretraining")
        ax.set_ylabel("paid per episode, points")
        folder.mkdir(exist_ok=True)
        figure.savefig(folder / f"{name}.png", facecolor="white")
    return f"![Mean paid return of an episode over training time]({folder.name}/{name}.png)"


def _results(study: Study, name: str) -> dict[str, Any]:
    path = study.folder(name) / "results.json"
    if not path.is_file():
        raise UserError(f"no results at {path}: run the study's entry {name} first")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _records(study: Study, names: Iterable[str]) -> list[dict[str, Any]]:
    paths = [study.folder(name) / RECORD for name in names]
    return [json.loads(path.read_text()) for path in paths if path.is_file()]


def _span(found: Mapping[str, float] | None) -> str:
    return span(Interval(**found)) if found else ""


def _negative(found: Mapping[str, float]) -> dict[str, float]:
    return {"mean": -found["mean"], "low": -found["high"], "high": -found["low"]}


Made = Callable[[Study, str, Path], str]
KINDS: dict[str, Made] = {f.__name__: f for f in (targets, lines, families, widths, against, costs, picture, curve)}
