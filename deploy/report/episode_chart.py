"""A figure of one episode: the timeline of its slots, and its accuracy compared with never growing."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from actors.env.rendering.palette import POLICIES, STYLE
from actors.env.rendering.timeline_chart import Drawn, slot_figure
from deploy.report.charts import label_right
from deploy.report.run_folder import RunFolder


def slot_timeline(run: RunFolder) -> Figure | None:
    """The recorded episode of a run, epoch by epoch; None if there is none."""
    episode = run.timeline
    if episode is None or not episode.ops:
        return None
    return compared(episode, episode.never_grow_accuracy)


def compared(episode: Drawn, never_grow_accuracy: list[float]) -> Figure:
    """The timeline of an episode, with the accuracy (points) of the same host without growth."""
    figure, above = slot_figure(episode, len(never_grow_accuracy) - 1)
    above.set_title(episode.host, fontsize=10, pad=8)
    _accuracy(above, episode.accuracy, never_grow_accuracy)
    return figure


def write_picture(episode: Drawn, never_grow_accuracy: list[float], path: Path) -> None:
    """Write the figure as PNG or SVG, by the suffix of `path`. The output is deterministic."""
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "tamiyo"}):
        metadata = {"Date": None} if path.suffix == ".svg" else None
        compared(episode, never_grow_accuracy).savefig(path, facecolor="white", metadata=metadata)


def _accuracy(ax: Axes, grown: list[float], never_grow: list[float]) -> None:
    learned, alone = POLICIES["learned"], POLICIES["never grow"]
    shared = min(len(grown), len(never_grow))
    ax.fill_between(range(shared), never_grow[:shared], grown[:shared], color=learned, alpha=0.08, lw=0)
    ax.plot(range(len(never_grow)), never_grow, color=alone, ls=(0, (5, 3)), lw=1.5)
    ax.plot(range(len(grown)), grown, color=learned, lw=2.2)
    ends = (("growing", grown, learned), ("never growing", never_grow, alone))
    label_right(
        ax, [(values[-1], f"{name} {values[-1]:.0f}%", ink) for name, values, ink in ends if values], height_in=1.6
    )
