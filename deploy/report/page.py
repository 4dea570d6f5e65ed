"""The report of a run: one self-contained HTML page, and on request its figures as PNG."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import matplotlib
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from actors.env.rendering.palette import GRID, INK, MUTED, OPS, POLICIES, STAGES, STYLE
from actors.env.rendering.timeline_chart import NARROW_IN
from actors.errors import UserError
from deploy.report.charts import FIGURES, titled
from deploy.report.numbers import number
from deploy.report.progress import clock
from deploy.report.run_folder import RunFolder, read_run

COLORS = {
    INK: "ink",
    MUTED: "muted",
    GRID: "line",
    "#b6bec8": "axis",
    "#ffffff": "page",
    POLICIES["learned"]: "blue",
    POLICIES["never grow"]: "grey",
    OPS["WAIT"]: "quiet",
    STAGES["DORMANT"]: "soft",
}
"""CSS variables of the page by the color that they replace."""


def write_report(run_dir: Path, pictures: bool = False) -> tuple[str, Path]:
    """Write `report.html` and, with `pictures`, `report/*.png` into a run folder. Returns its headline and the path of
    the page. Raises `UserError`."""
    try:
        run = read_run(run_dir)
        if pictures:
            (run_dir / "report").mkdir(exist_ok=True)
        return _write(run, run_dir, pictures)
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # a file may hold anything
        raise UserError(f"a file of the run folder {run_dir} is damaged ({type(error).__name__}: {error})") from error


def _write(run: RunFolder, run_dir: Path, pictures: bool) -> tuple[str, Path]:
    drawn = []
    with matplotlib.rc_context(STYLE):
        for draw in FIGURES:
            figure, narrow = draw(run), draw(run, NARROW_IN)
            if figure is None or narrow is None:
                continue
            _lay_out(figure, narrow)
            if pictures:
                figure.savefig(run_dir / "report" / f"{draw.__name__}.png", facecolor="white")
            title, caption = titled(draw)
            svgs = {"wide": _inline_svg(figure, title), "narrow": _inline_svg(narrow, title)}
            drawn.append({"name": draw.__name__, "title": title, "caption": caption, **svgs})
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["number"] = number
    environment.filters["unbroken"] = lambda text: re.sub(r"\[[^\[\]]+\]", _one_piece, text)
    sentences, texts = headline(run), {"facts": _facts(run), "stops": _stops(run)}
    page = environment.get_template("report.html.j2").render(run=run, headline=sentences, drawn=drawn, **texts)
    path = run_dir / "report.html"
    path.write_text(page, encoding="utf-8")
    return " ".join(sentences), path


def _lay_out(*figures: Figure) -> None:
    """Lay figures out once. Matplotlib would do so, and draw once more, each time that one is saved."""
    for figure in figures:
        engine = figure.get_layout_engine()
        if engine is not None:
            engine.execute(figure)
            figure.set_layout_engine("none")


def _inline_svg(figure: Figure, label: str) -> str:
    """Return a figure as an SVG element that is as wide as its place, refers to nothing outside of the page and has the
    colors of its light or dark scheme."""
    file = StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # texts stay texts, which can be found and read aloud
        figure.savefig(file, format="svg", transparent=True)
    drawn = file.getvalue()
    drawn = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", drawn[drawn.index("<svg") :], flags=re.DOTALL)
    view = re.search(r'viewBox="[^"]+"', drawn)
    assert view is not None
    drawn = re.sub(r"<svg[^>]*>", f'<svg role="img" aria-label="{label}" {view[0]}>', drawn, count=1)
    drawn = re.sub(r'<g id="[^"]*"', "<g", drawn)  # which several figures share
    for color, name in COLORS.items():
        drawn = drawn.replace(f": {color}", f": var(--{name})")
    return drawn


def headline(run: RunFolder) -> list[str]:
    """Summarize the comparison with the baselines in one or two sentences."""
    if run.references is None or not run.comparisons:
        return [f"No comparison: {run.why_no_references}."]
    found, n, unit = [], len(run.references.learned), f" {run.unit}" if run.unit else ""
    for baseline, interval in run.comparisons.items():
        mean, low, high = (number(x, interval.size, "") for x in interval)
        if interval.verdict == "worse":
            mean, low, high = (number(-x, interval.size, "") for x in (interval.mean, interval.high, interval.low))
        bounds = f"[{low}, {high}] (95%, n={n} paired seeds)"
        if interval.verdict == "better":
            found.append(f"Learned beats {baseline} by {mean}{unit} {bounds}.")
        elif interval.verdict == "worse":
            found.append(f"Learned is worse than {baseline} by {mean}{unit} {bounds}.")
        else:
            mean = number(interval.mean, interval.size)
            found.append(f"Learned does not beat {baseline}: {mean}{unit} {bounds}, an interval that includes zero.")
    if cut_at := run.references.cut_at:
        found.append(f"Episodes were cut after {cut_at:,} steps and count up to there.")
    return found


def _one_piece(interval: re.Match[str]) -> str:
    return interval[0].replace(" ", "\u00a0")


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
    if grown := run.comparisons.get("never grow"):  # the return of a host includes what it learns without growing
        return [*facts, ("J over never growing", number(grown.mean, grown.size))]
    for name, title in (("return_mean", "last mean return"), ("reward_mean", "last mean reward per step")):
        known = [record[name] for record in run.metrics if record.get(name) is not None]
        if known and run.per_step == (name == "reward_mean"):
            facts.append((title, number(known[-1])))
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
