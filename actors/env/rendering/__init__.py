"""Episodes as timelines and pictures."""
