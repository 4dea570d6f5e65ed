"""The network of a column: a bare host of another width."""

from __future__ import annotations

from math import floor

from actors.env.hosts.host import Host

MIN_WIDTH, MAX_WIDTH = 2, 64
"""Bounds of a column's width, in units or channels; the upper one bounds the cost of an episode."""


def column_width(host_width: int, scale: float) -> int:
    """Return the width of a column at `scale` times the host's width."""
    return min(max(floor(scale * host_width + 0.5), MIN_WIDTH), MAX_WIDTH)


def column_host(host: Host, scale: float) -> Host:
    """Return the host that computes a column of `host`. Nothing grows in its slots."""
    return host.with_width(column_width(host.width, scale))
