"""The output of an evaluation: an HTML page, figures as PNG, rows as Parquet, and tables for the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from rich.table import Table

from actors.env.rendering.palette import STYLE
from deploy.evaluation import pictures
from deploy.evaluation.results import BLIND, CEILING, FIXED, MAIN, PERIODIC, STREAM, Results
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
        "intervals",
        "Improvement over never growing",
        "J minus the J of never growing on the same episodes. Left: the mean. Right: the interquartile mean (IQM), "
        "which is robust to outliers. Bars are 95% bootstrap intervals over policies, families and episodes.",
        pictures.intervals,
    ),
    EvaluationFigure(
        "improvement",
        "Probability of improvement",
        "The probability that the greedy policy has a higher J than the other player on the same episode.",
        pictures.improvement,
    ),
    EvaluationFigure(
        "profiles",
        "Performance profiles",
        "The fraction of episodes whose J exceeds that of never growing by at least the given number of points.",
        pictures.profiles,
    ),
    EvaluationFigure(
        "pareto",
        "Accuracy and rent",
        "Final test accuracy against the rent. Lines connect schedules or policies that were "
        "played at different prices, given next to the points.",
        pictures.pareto,
    ),
    EvaluationFigure(
        "regret",
        "Regret by family",
        "The gap to the best schedule of each family, which was selected on other seeds of that family. A single rule "
        "for all families does not have this information.",
        pictures.regret,
    ),
)

SHOWN = (MAIN, BLIND, FIXED, STREAM, PERIODIC, "tuned plateau", CEILING, "static maximum")
"""Rows of the table that the table by family shows."""


def write_page(results: Results, folder: Path, facts: list[tuple[str, str]], settings: str) -> Path:
    """Write `index.html`, the figures, `results.json`, and with pyarrow also `rows.parquet`. Returns the page."""
    drawn = []
    with matplotlib.rc_context(STYLE):
        for picture in FIGURES:
            figure = picture.draw(results)
            if figure is not None:
                figure.savefig(folder / f"{picture.name}.png", facecolor="white")
                drawn.append({"picture": picture, "svg": Markup(as_svg(figure, picture.name))})
    (folder / "results.json").write_text(json.dumps(results.as_dict(), indent=1) + "\n")
    write_parquet(results, folder / "rows.parquet")
    home = Path(__file__).parents[1]
    environment = Environment(
        loader=FileSystemLoader(home), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page = environment.get_template("evaluation/page.html.j2").render(
        name=folder.resolve().parent.name,
        headline=results.sentences,
        facts=facts,
        drawn=drawn,
        lines=results.lines,
        families=results.families,
        shown=[name for name in SHOWN if name in results.rows],
        targets=results.targets,
        settings=settings,
        span=span,
        price=results.price,
    )
    path = folder / "index.html"
    path.write_text(page, encoding="utf-8")
    return path


def write_parquet(results: Results, path: Path) -> bool:
    """Write one row per episode. Returns False if pyarrow, an extra, is not installed."""
    if find_spec("pyarrow") is None:
        return False
    import pyarrow
    import pyarrow.parquet

    rows: list[dict[str, Any]] = [
        {"line": line, "policy": index, "family": family, "J": row.objective(results.price)} | row.as_dict()
        for line, policies in results.rows.items()
        for index, policy in enumerate(policies)
        for family, own in policy.items()
        for row in own
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return True


def span(i: Interval | None, digits: int = 2) -> str:
    return "" if i is None else f"{i.mean:+.{digits}f} [{i.low:.{digits}f}, {i.high:.{digits}f}]"


def terminal(results: Results) -> tuple[Table, Table]:
    """Return the table of players and the table of targets."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("player", no_wrap=True)
    for name in ("n", "J", "J over never", "its IQM", "policy's J over it", "P(better)", "test", "params", "FLOPs"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in results.lines:
        table.add_row(
            line.name,
            str(line.policies),
            f"{line.objective:+.2f}",
            span(line.over_never),
            "" if line.iqm_over_never is None else f"{line.iqm_over_never.mean:+.2f}",
            span(line.policy_over),
            "" if line.improvement is None else f"{line.improvement.mean:.2f}",
            f"{line.test_accuracy:.1f}",
            f"x{line.params:.2f}",
            f"x{line.training_flops:.2f}",
        )
    targets = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("target", "value", "goal", ""):
        targets.add_column(name, no_wrap=name != "value")
    for t in results.targets:
        targets.add_row(t.name, t.told, f"{t.goal:g}", "[green]met[/]" if t.met else "[red]missed[/]")
    return table, targets
