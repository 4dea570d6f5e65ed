"""Colors and style of all charts. The hues follow Okabe and Ito, and are distinct for color-blind readers."""

from __future__ import annotations

from typing import Any

INK, MUTED, GRID = "#1d232b", "#66707c", "#e3e7ec"

POLICIES = {"learned": "#0072b2", "random": "#d55e00", "never grow": "#6b7280"}

OPS = {
    "WAIT": "#cfd5dc",
    "GERMINATE": "#009e73",
    "ADVANCE": "#e69f00",
    "SET_ALPHA_TARGET": "#cc79a7",
    "FOSSILIZE": "#0072b2",
    "PRUNE": "#d55e00",
}

STAGES = {
    "DORMANT": "#f3f5f7",
    "GERMINATED": "#009e73",
    "TRAINING": "#e69f00",
    "BLENDING": "#56b4e9",
    "HOLDING": "#cc79a7",
    "FOSSILIZED": "#0072b2",
    "PRUNED": "#d55e00",
    "EMBARGOED": "#b9a79d",
    "RESETTING": "#d9d2cc",
}

HEADS = {
    "op": "#1d232b",
    "slot": "#0072b2",
    "blueprint": "#009e73",
    "blend": "#cc79a7",
    "alpha_target": "#e69f00",
    "alpha_speed": "#56b4e9",
}

SPARE = ("#d55e00", "#8c6bb1", "#7f7f7f", "#a6761d")

STYLE: dict[Any, object] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": "#b6bec8",
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "path",
    "savefig.dpi": 160,
}


def color(name: str, table: dict[str, str]) -> str:
    """Return the color of `name`, or a fixed spare color for a name that is not in the table."""
    return table.get(name) or SPARE[sum(name.encode()) % len(SPARE)]
