"""The picture of an episode: accuracy, then a lane per slot with its stage, alpha, blueprint and ops, then doublings of
the model and of the training compute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from numpy.typing import NDArray

from actors.env.episode.timeline import Timeline
from actors.env.rendering.palette import GRID, INK, MUTED, OPS, POLICIES, STAGES, STYLE, color

MARKERS = {"GERMINATE": "^", "ADVANCE": ">", "SET_ALPHA_TARGET": "D", "FOSSILIZE": "s", "PRUNE": "X"}
STRIP = 1.22  # y position of op markers in a lane, where alpha runs from 0 to 1
WIDTH_IN, NARROW_IN = 9.0, 4.4  # of pages, and of phones
COLUMN_IN = 1.1  # of the legend
PICTURE_DPI = 100  # for screens
LETTER_IN, MARGIN_IN = 0.078, 0.8  # widths of a letter of a blueprint's name, and of what is beside a lane


def draw_episode(
    episode: Timeline, never_grow: Sequence[float] = (), width_in: float = WIDTH_IN, every_slot: bool = True
) -> Figure:
    """Draw an episode so far, and beside it the accuracies of the same host without growth, if they are given.

    With `every_slot`, every picture of an episode with so many slots and epochs has the same layout; otherwise only the
    slots, stages and ops that occur are drawn.
    """
    last, played = max(episode.horizon, len(episode.ops)), len(episode.ops)
    slots = [s for s in range(len(episode.kinds)) if every_slot or {*episode.stages[s]} - {"DORMANT"}]
    figure = Figure(figsize=(width_in, 3.6 + 0.72 * len(slots)), layout="constrained")
    ratios = [3.2, *[1.15] * len(slots), 0.8]
    above, *lanes, below = figure.subplots(len(slots) + 2, 1, sharex=True, height_ratios=ratios)
    for slot, lane in zip(slots, lanes, strict=True):
        _lane(lane, episode, slot, last, width_in)
    _growth(below, episode)
    above.set_xlim(0, last)
    above.set_ylim(0, 100)
    above.set_ylabel("accuracy (%)")
    learned, alone = POLICIES["learned"], POLICIES["never grow"]
    drawn = above.plot(range(len(episode.accuracy)), episode.accuracy, color=learned, lw=2.2, clip_on=False)
    if len(never_grow):
        drawn += above.plot(range(len(never_grow)), never_grow, color=alone, ls=(0, (5, 3)), lw=1.5)
        labels = [f"growing {episode.accuracy[-1]:.0f}%", f"never growing {never_grow[-1]:.0f}%"]
        above.legend(drawn, labels, loc="lower right" if min(*episode.accuracy, *never_grow) > 25 else "upper left")
    drawn += above.plot(played, episode.accuracy[-1], "o", color=learned, ms=5, clip_on=False)
    for line in drawn:
        line.set_in_layout(False)
    title = [episode.task] if episode.names else [f"{episode.task}, seed {episode.seed}", episode.host]
    result = [f"epoch {played} of {episode.horizon}", f"accuracy {episode.accuracy[-1]:.1f}%"]
    if episode.shares:
        result.append(f"J {sum(episode.shares):+.1f} points".replace("-", "\u2212"))
    lines = (
        ["  \u00b7  ".join(line) for line in (title, result)] if width_in >= WIDTH_IN else [*title, ", ".join(result)]
    )
    above.set_title("\n".join(lines), fontsize=10 if width_in >= WIDTH_IN else 9, pad=8)
    below.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    below.set_xlabel("host epoch")
    stages = [s for s in STAGES if every_slot or any(s in episode.stages[slot] for slot in slots)]
    _legend(figure, stages, [op for op in MARKERS if every_slot or op in episode.ops], width_in)
    return figure


def picture(episode: Timeline) -> NDArray[np.uint8]:
    """Draw the episode so far; return RGB `[height, width, 3]`."""
    with matplotlib.rc_context(STYLE):
        figure = draw_episode(episode)
        figure.set_dpi(PICTURE_DPI)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()  # type: ignore[no-untyped-call]
        return np.asarray(canvas.buffer_rgba())[..., :3].copy()  # type: ignore[no-untyped-call]


def _lane(ax: Axes, episode: Timeline, slot: int, last: int, width_in: float) -> None:
    start, top = 0, 1 / (STRIP + 0.12)
    for stage, run in groupby(episode.stages[slot]):
        stop = start + len(list(run))
        hue = color(stage, STAGES)
        ax.axvspan(start, stop, 0, top, color=hue, alpha=1.0 if stage == "DORMANT" else 0.32, lw=0)
        ax.stairs(episode.alphas[slot][start:stop], range(start, stop + 1), fill=True, color=hue, alpha=0.85, lw=0)
        start = stop
    if start < last:
        ax.axvspan(start, last, 0, top, color=GRID, alpha=0.25, lw=0)  # not played yet
    _blueprints(ax, episode.blueprints[slot], last, width_in - MARGIN_IN)
    for epoch, (op, target) in enumerate(zip(episode.ops, episode.op_slots, strict=True)):
        if target == slot and op in MARKERS:
            ax.plot(epoch + 0.5, STRIP, MARKERS[op], color=OPS[op], ms=6, mec="white", mew=0.6, clip_on=False)
    ax.set_ylim(0, STRIP + 0.12)
    ax.set_yticks([])
    ax.grid(visible=False)
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.xaxis.set_visible(False)  # that of the lowest panel stands for all
    ax.set_ylabel(episode.lanes[slot], rotation=0, ha="right", va="center", color=INK)


def _blueprints(ax: Axes, names: list[str], last: int, lane_in: float) -> None:
    """Label each seed with its blueprint, shortened if the next seed leaves too little room."""
    starts = [start for start, (before, name) in enumerate(pairwise(["", *names])) if name not in ("", before)]
    for start, end in pairwise([*starts, last]):
        name = names[start]
        letters = int((end - start) * lane_in / last / LETTER_IN)
        if letters < 2:
            continue
        short = name if len(name) <= letters else name[: letters - 1] + "\u2026"
        text = ax.text(start + 0.008 * last, 0.5, short, va="center", fontsize=8.5, color=INK, clip_on=True)
        text.set_path_effects([withStroke(linewidth=2.4, foreground="white", alpha=0.85)])


def _growth(ax: Axes, episode: Timeline) -> None:
    edges = range(len(episode.doublings) + 1)
    ax.stairs(episode.doublings, edges, fill=True, color=MUTED, alpha=0.3)
    ax.stairs(episode.doublings, edges, baseline=None, color=MUTED, lw=1.2, label="of the model")
    dashes, compute = (0, (4, 2)), episode.compute_doublings
    ax.stairs(compute, edges, baseline=None, color=INK, lw=1.2, ls=dashes, label="of compute")
    both = [*episode.doublings, *episode.compute_doublings]
    low, high = min([0.0, *both]), max([0.4, *both])
    ax.set_ylim(1.15 * low, 1.15 * high)
    style = {"ncols": 2, "fontsize": 8, "handlelength": 1.6, "borderaxespad": 0.2, "borderpad": 0.1}
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), **style)
    ax.yaxis.set_major_locator(MaxNLocator(nbins=2, steps=[1, 2, 5, 10]))
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:.1f}"))
    ax.set_ylabel("doublings", rotation=0, ha="right", va="center", color=INK)


def _legend(figure: Figure, stages: Sequence[str], ops: Sequence[str], width_in: float) -> None:
    handles: list[Artist] = [
        Patch(facecolor=STAGES[s], alpha=1.0 if s == "DORMANT" else 0.6, label=s.lower(), ec="#c8cfd7", lw=0.6)
        for s in stages
    ]
    handles += [
        Line2D([], [], ls="", marker=MARKERS[op], color=OPS[op], ms=6, label=op.lower().replace("_", " ")) for op in ops
    ]
    style = {"handlelength": 1.1, "handletextpad": 0.5, "columnspacing": 1.3}
    rows = math.ceil(len(handles) / int(width_in / COLUMN_IN))
    figure.legend(handles=handles, loc="outside upper left", ncols=math.ceil(len(handles) / max(rows, 1)), **style)
