"""Figures as SVG inside of a page, in the colors of its light or dark scheme."""

from __future__ import annotations

import re
from io import StringIO

import matplotlib
from matplotlib.figure import Figure

from actors.env.rendering.palette import GRID, INK, MUTED, OPS, POLICIES, STAGES

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


def inline_svg(figure: Figure, label: str) -> str:
    """Return a figure as an element that is as wide as its place and refers to nothing outside of the page."""
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
