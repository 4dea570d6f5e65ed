"""The report of a run: one self-contained page, and its pictures as PNG."""

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
from deploy.report import charts, episode_chart
from deploy.report.progress import clock
from deploy.report.run_folder import RunFolder, read_run
from deploy.report.statistics import Interval, paired_interval


class Picture(NamedTuple):
    name: str
    title: str
    caption: str
    draw: Callable[[RunFolder], Figure | None]
    gym_caption: str | None = None  # under a run on a Gymnasium environment; None leaves the picture out there


PICTURES = (
    Picture(
        "learning_curve",
        "Learning curve",
        "Undiscounted return in points of validation accuracy after rent: the mean over recent updates' episodes, with "
        "every task weighted equally, and its 95% band. Dashed lines are the random policy and never growing, played "
        "on task seeds of the last fifth (shaded). The paired comparison above is much sharper than this picture.",
        charts.learning_curve,
        "Undiscounted return of whole episodes: the mean over recent updates' episodes, and its 95% band. The dashed "
        "line is the random policy, played on seeds of the last fifth (shaded).",
    ),
    Picture(
        "task_returns",
        "Return by task",
        "The same task seeds under each policy; bars are 95% intervals of the mean.",
        charts.task_returns,
        "The same seeds under each policy; bars are 95% intervals of the mean.",
    ),
    Picture(
        "slot_timeline",
        "One episode, epoch by epoch",
        "Accuracy on the validation split above, against the same host left alone. A lane per slot: its tint is the "
        "stage, the height of the fill is alpha, the text is the blueprint. Marks above a lane are the policy's ops.",
        episode_chart.slot_timeline,
    ),
    Picture(
        "op_shares",
        "What the policy does",
        "Share of steps that chose each op.",
        charts.op_shares,
        "Share of steps that made each choice of the first head.",
    ),
    Picture(
        "head_entropies",
        "How decided it is",
        "Normalised entropy of each head over the steps where it mattered and there was a choice.",
        charts.head_entropies,
        "Normalised entropy of each head over the steps where there was a choice.",
    ),
    Picture(
        "flow",
        "How the data flowed",
        "Policy lag counts how many published weight sets had passed since an episode's oldest step.",
        charts.flow,
        "Policy lag counts how many published weight sets had passed since an episode's or a segment's oldest step.",
    ),
)


class Comparison(NamedTuple):
    against: str
    interval: Interval
    n: int

    @property
    def verdict(self) -> str:
        if self.interval.low > 0:
            return "better"
        return "worse" if self.interval.high < 0 else "not distinguishable"


def write_report(run_dir: Path) -> Path:
    """Writes `report.html` and `report/*.png` into a run folder; returns the page's path. UserError without a run."""
    run = read_run(run_dir)
    (run_dir / "report").mkdir(exist_ok=True)
    drawn, missing = [], []
    with matplotlib.rc_context(STYLE):
        for picture in _pictures(run):
            figure = picture.draw(run)
            if figure is None:
                missing.append(picture.title)
                continue
            figure.savefig(run_dir / "report" / f"{picture.name}.png", facecolor="white")
            drawn.append({"picture": picture, "svg": Markup(as_svg(figure, picture.name))})
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page = environment.get_template("report.html.j2").render(
        run=run,
        headline=_headline(run),
        comparisons=_comparisons(run),
        facts=_facts(run),
        drawn=drawn,
        missing=missing,
    )
    path = run_dir / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _pictures(run: RunFolder) -> list[Picture]:
    if not run.gym_id:
        return list(PICTURES)
    return [p._replace(caption=p.gym_caption) for p in PICTURES if p.gym_caption is not None]


def headline(run_dir: Path) -> str:
    """What the run showed, in one or two sentences, whether or not it flatters."""
    return " ".join(_headline(read_run(run_dir)))


def _headline(run: RunFolder) -> list[str]:
    comparisons = _comparisons(run)
    if not comparisons:
        return ["No comparison: the run ended before its references were played."]
    return [_sentence(c, run.unit) for c in comparisons]


def _sentence(c: Comparison, unit: str) -> str:
    mean, low, high = c.interval
    unit = f" {unit}" if unit else ""
    low, high = (-high, -low) if c.verdict == "worse" else (low, high)
    bounds = f"[{low:.1f}, {high:.1f}] (95%, n={c.n} paired seeds)"
    if c.verdict == "better":
        return f"Learned beats {c.against} by {mean:.1f}{unit} {bounds}."
    if c.verdict == "worse":
        return f"Learned is worse than {c.against} by {-mean:.1f}{unit} {bounds}."
    return f"Learned does not beat {c.against}: {mean:+.1f}{unit} {bounds}, an interval that includes zero."


def _comparisons(run: RunFolder) -> list[Comparison]:
    r = run.references
    if r is None or len(r.learned) < 2:
        return []
    return [
        Comparison(name, paired_interval(r.learned, values), len(r.learned)) for name, values in r.baselines.items()
    ]


def _facts(run: RunFolder) -> list[tuple[str, str]]:
    if not run.metrics:
        return [("updates", "0")]
    last = run.metrics[-1]
    elapsed = float(last.get("elapsed_s", 0.0))
    facts = [("updates", f"{last['update']:,}"), ("time", clock(elapsed))]
    if run.episodes:
        facts.append(("episodes", f"{len(run.episodes):,}"))
        facts.append(("steps", f"{sum(int(e['steps']) for e in run.episodes):,}"))
        if elapsed > 0:
            facts.append(("episodes / s", f"{len(run.episodes) / elapsed:.1f}"))
    if last.get("return_mean") is not None:
        facts.append(("last mean return", f"{last['return_mean']:+.1f}"))
    return facts


def as_svg(figure: Figure, name: str) -> str:
    """A figure as inline SVG: no prolog, no metadata, no address, ids that do not clash with the other pictures'."""
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
