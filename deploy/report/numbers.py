"""Numbers of any scale for people: large ones with one decimal, small ones with two significant digits."""

from __future__ import annotations

from math import floor, isfinite, log10


def number(value: float, scale: float | None = None, sign: str = "+") -> str:
    """Format `value` with the digits that a number of the size `scale` (default: its own) needs."""
    size = abs(value if scale is None else scale)
    if not isfinite(size) or size == 0 or size >= 1:
        return f"{value:{sign}z.1f}"
    return f"{value:{sign}z.{1 - floor(log10(size))}f}" if size >= 1e-4 else f"{value:{sign}.1e}"
