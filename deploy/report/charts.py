"""Figures of a run, each a pure function of the run folder and a width in inches; None if there is nothing to draw.
Their docstrings are what the page says of them.

Figures that are narrower than `WIDTH_IN` are for phones: legends are above them, and panels below each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from actors.env.rendering.palette import GRID, HEADS, INK, MUTED, OPS, POLICIES, color
from actors.env.rendering.timeline_chart import WIDTH_IN, draw_episode
from deploy.report.run_folder import RunFolder
from deploy.report.statistics import Floats, mean_interval


def titled(draw: Callable[..., Figure | None]) -> tuple[str, str]:
    """Return the title and the caption of a figure on the page: the first line of its docstring, and the others."""
    title, _, caption = (draw.__doc__ or "").partition("\n")
    return title, " ".join(caption.split())


MOST_LINES, OTHERS = 12, "others"  # in one figure


def learning_curve(run: RunFolder, width_in: float = WIDTH_IN) -> Figure | None:
    """Learning curve

    Undiscounted return of the episodes that ended in recent updates: their mean, with all tasks weighted equally, and
    its 95% band. In the first updates of a run these are the shorter ones. If no episode ended: mean reward of a step.
    Dashed lines show the baselines; the paired comparison is more precise.
    """
    if len(run.metrics) < 2:
        return None
    x, window = run.series("update"), max(3, len(run.metrics) // 6)
    figure, ax = _figure(3.6, width_in)
    if run.per_step:  # mean rewards of a step over the last updates, without a band
        y = run.series("reward_mean")
        mean = low = high = np.array([y[max(0, i - window + 1) : i + 1].mean() for i in range(len(y))])
    else:
        mean, low, high = run.episodes.rolling_returns(x, window)
    if not np.isfinite(mean).any():
        return None
    if run.references is not None and not (run.per_step or run.references.cut_at):
        for name, values in run.references.baselines.items():
            level = float(np.mean([np.mean(own) for own in run.references.by_task(values).values()]))
            ax.axhline(level, color=POLICIES[name], lw=1.4, ls=(0, (5, 3)), label=name)
    ax.fill_between(x, low, high, color=POLICIES["learned"], alpha=0.18, lw=0)
    ax.plot(x, mean, color=POLICIES["learned"], lw=2.2, label="learned")
    _finish(ax, x, "mean reward of a step" if run.per_step else _return_label(run))
    return figure


def op_shares(run: RunFolder, width_in: float = WIDTH_IN) -> Figure | None:
    """Actions

    Fraction of steps for each choice, or range of choices, of the first head; of many, the commonest.
    """
    shares = run.families("op")
    if not shares or len(run.metrics) < 2:
        return None
    names = [n for n in OPS if n in shares] + [n for n in shares if n not in OPS]
    names = names[1:] + names[:1]
    if len(names) > MOST_LINES:
        commonest = sorted(names, key=lambda n: -float(np.nanmean(shares[n])))[: MOST_LINES - 1]
        shares[OTHERS] = np.nansum([shares[n] for n in names if n not in commonest], axis=0)
        names = [*filter(commonest.__contains__, names), OTHERS]
    x, stack = run.series("update"), np.nan_to_num(np.stack([shares[n] for n in names]))
    figure, ax = _figure(3.0, width_in)
    labels = [name.lower().replace("_", " ") for name in names]
    ax.stackplot(x, stack, labels=labels, colors=[color(n, OPS) for n in names], lw=0.4, edgecolor="white")
    _finish(ax, x, "fraction of steps", reverse=True)
    ax.set_ylim(0, 1)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure


def head_entropies(run: RunFolder, width_in: float = WIDTH_IN) -> Figure | None:
    """Policy entropy

    Normalized entropy of each head, over the steps where it was relevant and had several legal choices.
    """
    heads = run.families("entropy")
    if not heads or len(run.metrics) < 2:
        return None
    x = run.series("update")
    figure, ax = _figure(3.0, width_in)
    if len(heads) > MOST_LINES:
        first, rest = list(heads.items())[: MOST_LINES - 1], list(heads.values())[MOST_LINES - 1 :]
        heads = dict(first) | {OTHERS: np.mean(rest, axis=0)}
    for name, values in heads.items():
        ax.plot(x, values, color=color(name, HEADS), lw=2.0 if name == "op" else 1.5, label=name.replace("_", " "))
    _finish(ax, x, "entropy (1 = uniform)")
    ax.set_ylim(0, 1.03)
    return figure


def flow(run: RunFolder, width_in: float = WIDTH_IN) -> Figure | None:
    """Data flow

    Policy lag is the number of weight versions published since the oldest step of an episode or segment.
    """
    if len(run.metrics) < 2:
        return None
    x = run.series("update")
    wide = width_in >= WIDTH_IN
    figure = Figure(figsize=(width_in, 2.5 if wide else 6.0), layout="constrained")
    rate, lag, queue = figure.subplots(*((1, 3) if wide else (3, 1)))
    for ax, title, name in (
        (rate, "episodes per second", "episodes_per_s"),
        (lag, "policy lag (shaded: maximum)", "policy_lag_mean"),
        (queue, "episodes waiting in the queue", "queue_depth"),
    ):
        ax.plot(x, run.series(name), color=POLICIES["learned"], lw=1.5)
        ax.set_title(title)
        _updates_axis(ax, x)
    lag.fill_between(
        x, run.series("policy_lag_mean"), run.series("policy_lag_max"), color=MUTED, alpha=0.2, lw=0, step="mid"
    )
    for ax in (rate, lag, queue):
        ax.set_ylim(bottom=0)
    return figure


def task_returns(run: RunFolder, width_in: float = WIDTH_IN) -> Figure | None:
    """Return by task

    All policies on the same seeds; bars are 95% intervals of the mean.
    """
    references = run.references
    if references is None or not references.tasks:
        return None
    counts = Counter(references.tasks)
    tasks = sorted(counts)
    figure, ax = _figure(0.9 + 0.5 * len(tasks), width_in)
    policies = {"learned": references.learned} | references.baselines
    for row, task in enumerate(tasks):
        for k, (name, returns) in enumerate(policies.items()):
            values = references.by_task(returns)[task]
            mean, low, high = mean_interval(values) if len(values) > 1 else values * 3
            y, tint = row + 0.24 * ((len(policies) - 1) / 2 - k), POLICIES[name]
            ax.plot([low, high], [y, y], color=tint, lw=2.4, alpha=0.45)
            ax.plot(mean, y, "o", color=tint, ms=6.5, mec="white", mew=1, label=None if row else name)
    ax.axvline(0, color="#b6bec8", lw=0.8)
    between = "  " if width_in >= WIDTH_IN else "\n"
    ax.set_yticks(range(len(tasks)), [f"{t}{between}(n={counts[t]})" for t in tasks], color=INK)
    ax.set_ylim(-0.55, len(tasks) - 0.45)
    ax.grid(axis="x", color=GRID)
    ax.grid(axis="y", visible=False)
    ax.spines["left"].set_visible(False)
    cut_at = references.cut_at
    ax.set_xlabel(f"return of the first {cut_at:,} steps" if cut_at else _return_label(run))
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, handletextpad=0.2, borderaxespad=0.2, columnspacing=1.2)
    return figure


def slot_timeline(run: RunFolder, width_in: float = WIDTH_IN) -> Figure | None:
    """One episode, epoch by epoch

    Top: validation accuracy, compared with the same host without growth. Below, one lane per slot that was used: the
    color is the stage, the filled height is alpha, the text is the blueprint. Marks are the policy's ops.
    """
    if run.episode is None or not run.episode.timeline.ops:
        return None
    return draw_episode(run.episode.timeline, run.episode.never_grow_accuracy, width_in, every_slot=False)


FIGURES = (learning_curve, task_returns, slot_timeline, op_shares, head_entropies, flow)
"""In the order of the page."""


def _return_label(run: RunFolder) -> str:
    return "return (points)" if run.unit else "return of whole episodes"


def _figure(height_in: float, width_in: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    return figure, figure.subplots()


def _updates_axis(ax: Axes, x: Floats) -> None:
    ax.set_xlim(x[0], x[-1])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10]))
    ax.set_xlabel("update")


def _finish(ax: Axes, x: Floats, label: str, reverse: bool = False) -> None:
    """Draw the axes, and the legend beside them or, on phones, above."""
    _updates_axis(ax, x)
    ax.set_ylabel(label)
    figure = ax.get_figure(root=True)
    assert figure is not None
    if figure.get_size_inches()[0] >= WIDTH_IN:
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), reverse=reverse)
    else:
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), reverse=reverse, ncols=3, borderaxespad=0.2)
