"""The report of a run: one self-contained HTML page, and its figures as PNG."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import matplotlib
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from actors.env.rendering.palette import STYLE
from actors.errors import UserError
from deploy.report import charts, episode_chart
from deploy.report.findings import findings
from deploy.report.numbers import number
from deploy.report.progress import clock
from deploy.report.run_folder import Row, RunFolder, read_run
from deploy.report.statistics import Interval, paired_interval


class ReportFigure(NamedTuple):
    """A figure of the report with its title and caption."""

    name: str
    title: str
    caption: str
    draw: Callable[[RunFolder], Figure | None]
    gym_caption: str | None = None  # caption for Gymnasium environments; None omits the figure for them


FIGURES = (
    ReportFigure(
        "learning_curve",
        "Learning curve",
        "Undiscounted return in points of validation accuracy minus rent: the mean over the episodes of recent "
        "updates, with all tasks weighted equally, and its 95% band. Dashed lines show the random policy and never "
        "growing on task seeds of the last fifth (shaded). The paired comparison is more precise than this figure.",
        charts.learning_curve,
        "Undiscounted return of the episodes that ended in recent updates: their mean and its 95% band. In the first "
        "updates of a run these are the shorter ones. If no episode ended: mean reward of a step. The dashed line "
        "shows the random policy.",
    ),
    ReportFigure(
        "task_returns",
        "Return by task",
        "All policies on the same task seeds; bars are 95% intervals of the mean.",
        charts.task_returns,
        "All policies on the same seeds; bars are 95% intervals of the mean.",
    ),
    ReportFigure(
        "slot_timeline",
        "One episode, epoch by epoch",
        "Top: validation accuracy, compared with the same host without growth. Below, one lane per slot: the color is "
        "the stage, the filled height is alpha, the text is the blueprint. Marks above a lane are the policy's ops.",
        episode_chart.slot_timeline,
    ),
    ReportFigure(
        "op_shares",
        "Actions",
        "Fraction of steps that chose each op.",
        charts.op_shares,
        "Fraction of steps for each choice, or range of choices, of the first head; of many, the commonest.",
    ),
    ReportFigure(
        "head_entropies",
        "Policy entropy",
        "Normalized entropy of each head, over the steps where it was relevant and had several legal choices.",
        charts.head_entropies,
        "Normalized entropy of each head, over the steps with more than one legal choice.",
    ),
    ReportFigure(
        "flow",
        "Data flow",
        "Policy lag is the number of weight versions published since the oldest step of an episode.",
        charts.flow,
        "Policy lag is the number of weight versions published since the oldest step of an episode or segment.",
    ),
)


class BaselineDifference(NamedTuple):
    """A paired comparison of the learned policy with a baseline."""

    against: str
    interval: Interval
    n: int

    @property
    def verdict(self) -> str:
        """Whether the 95% interval excludes zero, and on which side."""
        if self.interval.low > 0:
            return "better"
        return "worse" if self.interval.high < 0 else "not distinguishable"


def write_report(run_dir: Path) -> Path:
    """Write `report.html` and `report/*.png` into a run folder, and return the path of the page. Raises `UserError`."""
    run = read_run(run_dir)
    try:
        (run_dir / "report").mkdir(exist_ok=True)
        return _write(run, run_dir)
    except OSError as error:
        raise UserError(f"cannot write the report to {run_dir} ({error.strerror}): make it writable") from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # a file may hold anything
        raise UserError(f"a file of the run folder {run_dir} is damaged ({type(error).__name__}: {error})") from error


def _write(run: RunFolder, run_dir: Path) -> Path:
    drawn, missing = [], []
    with matplotlib.rc_context(STYLE):
        for picture in _figures(run):
            figure = picture.draw(run)
            if figure is None:
                missing.append(picture.title)
                continue
            figure.savefig(run_dir / "report" / f"{picture.name}.png", facecolor="white")
            drawn.append({"picture": picture, "svg": Markup(as_svg(figure, picture.name))})
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["number"] = number
    page = environment.get_template("report.html.j2").render(
        run=run,
        headline=_headline(run),
        comparisons=_comparisons(run),
        findings=findings(run),
        facts=_facts(run),
        stops=_stops(run),
        drawn=drawn,
        missing=missing,
    )
    path = run_dir / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _figures(run: RunFolder) -> list[ReportFigure]:
    if not run.gym_id:
        return list(FIGURES)
    return [p._replace(caption=p.gym_caption) for p in FIGURES if p.gym_caption is not None]


def headline(run_dir: Path) -> str:
    """Summarize the comparison with the baselines in one or two sentences."""
    return " ".join(_headline(read_run(run_dir)))


def _headline(run: RunFolder) -> list[str]:
    comparisons = _comparisons(run)
    if not comparisons:
        return [f"No comparison: {run.why_no_references}."]
    cut_at = run.references.cut_at if run.references else 0
    return [_sentence(c, run.unit) for c in comparisons] + (
        [f"Episodes were cut after {cut_at:,} steps and count up to there."] if cut_at else []
    )


def _sentence(c: BaselineDifference, unit: str) -> str:
    mean, low, high = c.interval
    unit = f" {unit}" if unit else ""
    low, high = (-high, -low) if c.verdict == "worse" else (low, high)
    scale = c.interval.size
    bounds = f"[{number(low, scale, '')}, {number(high, scale, '')}] (95%, n={c.n} paired seeds)"
    if c.verdict == "better":
        return f"Learned beats {c.against} by {number(mean, scale, '')}{unit} {bounds}."
    if c.verdict == "worse":
        return f"Learned is worse than {c.against} by {number(-mean, scale, '')}{unit} {bounds}."
    return f"Learned does not beat {c.against}: {number(mean, scale)}{unit} {bounds}, an interval that includes zero."


def _comparisons(run: RunFolder) -> list[BaselineDifference]:
    r = run.references
    if r is None or len(r.learned) < 2:
        return []
    return [
        BaselineDifference(name, paired_interval(r.learned, values), len(r.learned))
        for name, values in r.baselines.items()
    ]


def _facts(run: RunFolder) -> list[tuple[str, str]]:
    if not run.metrics:
        return [("updates", "0")]
    last = run.metrics[-1]
    elapsed = float(last.get("elapsed_s", 0.0))
    facts = [("updates", f"{last['update']:,}"), ("time", clock(elapsed))]
    if run.episodes.count:
        facts.append(("episodes", f"{run.episodes.count:,}"))
        facts.append(("steps", f"{run.episodes.steps:,}"))
        if elapsed > 0:
            facts.append(("episodes / s", f"{run.episodes.count / elapsed:.1f}"))
    for name, title in (("return_mean", "last mean return"), ("reward_mean", "last mean reward per step")):
        known = [row[name] for row in run.metrics if row.get(name) is not None]
        if known and run.per_step == (name == "reward_mean"):
            facts.append((title, number(known[-1])))
    return facts + _in_force(run, last)


def _in_force(run: RunFolder, last: Row) -> list[tuple[str, str]]:
    """The values in force that say most about the update."""
    learner = run.section("learner")
    facts = [("learning rate", f"{last['lr']:g}")] if "lr" in last else []
    if learner.get("update_epochs"):
        facts.append(("passes over a batch", str(learner["update_epochs"])))
    if "chunk_length" in learner:
        whole = "whole segments" if run.gym_id or run.section("external").get("spaces") else "whole episodes"
        facts.append(("chunks", f"{n} steps" if (n := learner["chunk_length"]) else whole))
    return facts


def _stops(run: RunFolder) -> str:
    """Say how many updates the KL stop ended; nothing if none."""
    stopped = run.series("kl_stop") == 1
    if not stopped.any():
        return ""
    done, passes = run.series("update_epochs_done")[stopped].mean(), run.section("learner").get("update_epochs")
    limit = run.series("kl_limit")[stopped][-1]
    return (
        f"The KL stop ended {stopped.sum():,} of {len(run.metrics):,} updates early, because the KL was above "
        f"{limit:.3g}; they made {done:.1f} {f'of {passes} ' if passes else ''}passes on average."
    )


def as_svg(figure: Figure, name: str) -> str:
    """Render a figure as inline SVG, without prolog, metadata or URLs, and with ids that are unique on the page."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": hashlib.sha256(name.encode()).hexdigest()}):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\s(xmlns(:\w+)?|version)="[^"]*"', "", text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r'\1 aria-hidden="true"', text, count=1)
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\1{name}-", text)
