"""Reports of a training run: its decisions as an episode of the seed environment, from which policies learn."""
