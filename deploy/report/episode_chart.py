"""The run's episode as a picture: its slot timeline, with the never-grow accuracy of the same seed beside it."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from actors.env.rendering.palette import POLICIES
from actors.env.rendering.timeline_chart import slot_figure
from deploy.report.charts import label_right
from deploy.report.run_folder import RunFolder, Timeline


def slot_timeline(run: RunFolder) -> Figure | None:
    """The episode that the run recorded, epoch by epoch; None where it left none."""
    episode = run.timeline
    if episode is None or not episode.ops:
        return None
    figure, above = slot_figure(episode, len(episode.never_grow_accuracy) - 1)
    _accuracy(above, episode)
    return figure


def _accuracy(ax: Axes, episode: Timeline) -> None:
    epochs = range(len(episode.accuracy))
    never = POLICIES["never grow"]
    ax.plot(range(len(episode.never_grow_accuracy)), episode.never_grow_accuracy, color=never, ls=(0, (5, 3)), lw=1.5)
    ax.plot(epochs, episode.accuracy, color=POLICIES["learned"], lw=2.2)
    ends = (
        ("learned", episode.accuracy, POLICIES["learned"]),
        ("never grow", episode.never_grow_accuracy, never),
    )
    label_right(
        ax, [(values[-1], f"{name} {values[-1]:.0f}%", ink) for name, values, ink in ends if values], height_in=1.6
    )
