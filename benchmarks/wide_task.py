"""The host of the environment benchmark: width 16 on 16 features, as one task that needs no data set."""

from __future__ import annotations

import numpy as np

from actors.env.tasks import Split, Task, find_family


def factory(rng: np.random.Generator) -> Task:
    """Spirals among fourteen features of noise."""
    plain = find_family("spirals").factory(rng)

    def widened(split: Split) -> Split:
        noise = rng.standard_normal((len(split), 14)).astype(np.float32)
        return Split(np.concatenate([split.x, noise], axis=1), split.y)

    return Task("wide", plain.num_classes, 16, *(widened(s) for s in (plain.train, plain.val, plain.test)))
