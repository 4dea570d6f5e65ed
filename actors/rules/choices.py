"""What a chooser chooses from, as constants that cost nothing to import."""

from __future__ import annotations

LOOK = 3
"""The epoch after which a chooser decides, so that it has seen three epochs of training."""
SIZES = {"half": 0.5, "same": 1.0, "double": 2.0, "quad": 4.0}
"""Columns by name: their width in widths of the model."""
CHOICES = tuple((size, epoch) for epoch in (LOOK, -15, -10) for size in SIZES if size != "half" or epoch == LOOK)
"""Size and first epoch of the columns that a chooser chooses from; negative epochs count back from the end."""
