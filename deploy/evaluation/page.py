"""The output of an evaluation: an HTML page, figures as PNG, tables as JSON, and tables for the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from rich.table import Table

from actors.env.rendering.palette import STYLE
from deploy.evaluation import pictures
from deploy.evaluation.players import BEST, BLIND, BUILT, CHOOSER, FIXED, GAP, POLICY
from deploy.evaluation.results import EQUAL, SWEEP, Results
from deploy.evaluation.targets import targets
from deploy.report.page import as_svg
from deploy.report.statistics import Interval


class EvaluationFigure(NamedTuple):
    """A figure of the page with its title and caption."""

    name: str
    title: str
    caption: str
    draw: Callable[[Results], Figure | None]


FIGURES = (
    EvaluationFigure(
        "sweep",
        "One run against a sweep",
        "J over never growing, the mean over four prices, against the training FLOPs of one run. Bars are 95% "
        "intervals. The shaded corner is the target: at most one point behind the full sweep, for at most a third of "
        "its FLOPs.",
        pictures.against_sweep,
    ),
    EvaluationFigure(
        "front",
        "Accuracy and size",
        "Validation accuracy at the end against the doublings of the parameters, means over families and episodes. "
        "Lines connect a player at different prices (the numbers, in points per doubling), and hosts that were built "
        "wider.",
        pictures.front,
    ),
    EvaluationFigure(
        "families",
        "By family",
        "J of the policy minus J of the best single schedule on the same episodes, the mean over four prices. Bars are "
        "95% intervals over policies and episodes.",
        pictures.by_family,
    ),
    EvaluationFigure(
        "growth",
        "Growth by price and width",
        "Doublings of the parameters at the end, for hosts of four classes of widths. The full sweep knows the "
        "result of every width; the policy decides during its only run.",
        pictures.growth,
    ),
)

SHOWN = (POLICY, BLIND, CHOOSER, BEST, FIXED, GAP, BUILT.format(2), EQUAL, SWEEP)
"""Rows of the table that the tables by family and by width show."""


def write_page(results: Results, folder: Path, facts: list[tuple[str, str]], settings: str) -> Path:
    """Write `index.html`, the figures and `results.json`. Returns the page."""
    drawn = []
    with matplotlib.rc_context(STYLE):
        for picture in FIGURES:
            figure = picture.draw(results)
            if figure is not None:
                figure.savefig(folder / f"{picture.name}.png", facecolor="white")
                drawn.append({"picture": picture, "svg": Markup(as_svg(figure, picture.name))})
    (folder / "results.json").write_text(json.dumps(as_dict(results), indent=1) + "\n")
    home = Path(__file__).parents[1]
    environment = Environment(
        loader=FileSystemLoader(home), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page = environment.get_template("evaluation/page.html.j2").render(
        name=folder.resolve().name,
        headline=results.sentences,
        facts=facts,
        drawn=drawn,
        prices=results.prices,
        lines=results.lines,
        families=results.family_lines,
        widths=results.width_lines,
        shown=[name for name in SHOWN if name in results.rows],
        targets=targets(results),
        settings=settings,
        span=span,
    )
    path = folder / "index.html"
    path.write_text(page, encoding="utf-8")
    return path


def as_dict(results: Results) -> dict[str, Any]:
    """Return all tables as plain data."""

    def plain(lines: Sequence[NamedTuple]) -> list[dict[str, Any]]:
        return [{k: v._asdict() if isinstance(v, Interval) else v for k, v in x._asdict().items()} for x in lines]

    return {
        "headline": results.sentences,
        "prices": results.prices,
        "targets": plain(targets(results)),
        "lines": plain(results.lines),
        "families": plain(results.family_lines),
        "widths": plain(results.width_lines),
    }


def span(i: Interval | None, digits: int = 2) -> str:
    """Return a mean and its interval as text."""
    return "" if i is None else f"{i.mean:+.{digits}f} [{i.low:.{digits}f}, {i.high:.{digits}f}]"


def terminal(results: Results) -> tuple[Table, Table]:
    """Return the table of players and the table of targets."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("player", no_wrap=True)
    prices = [f"at {w:g}" for w in results.prices]
    for name in ("n", "J over never", *prices, "policy's over it", "P(better)", "test", "doublings", "FLOPs"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in results.lines:
        table.add_row(
            line.name,
            str(line.policies),
            span(line.over_never),
            *(f"{line.by_price[w]:+.2f}" for w in results.prices),
            span(line.policy_over),
            "" if line.improvement is None else f"{line.improvement.mean:.2f}",
            "" if line.test_accuracy is None else f"{line.test_accuracy:.1f}",
            f"{line.doublings:.2f}",
            f"x{line.training_flops:.2f}",
        )
    table_of_targets = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("target", "measured", "goal", ""):
        table_of_targets.add_column(name, no_wrap=True)
    for t in targets(results):
        table_of_targets.add_row(t.name, t.measured, t.goal, f"[{'green' if t.met else 'red'}]{t.verdict}[/]")
    return table, table_of_targets
