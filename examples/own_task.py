"""A task of your own: a function that takes a random generator and returns a `Task`.

    python examples/own_task.py                              one episode on it, a seed grown in the middle slot
    tamiyo train --preset quick --task examples.own_task:stripes    train a policy on it (from the repository's root)

A package offers its tasks to everyone who installs it through an entry point, and `tamiyo tasks` then lists them:

    [project.entry-points."tamiyo.tasks"]
    stripes = "mypkg.tasks:stripes"
"""

from __future__ import annotations

import numpy as np
import torch

import tamiyo
from actors.env.tasks import Sizes, Task, draw_splits
from actors.types.actions import Op


def stripes(rng: np.random.Generator) -> Task:
    """Slanted stripes in the plane; their angle and width vary with the seed."""
    angle, cycles = rng.uniform(0, np.pi), rng.uniform(1.0, 1.5)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.uniform(-1, 1, (n, 2))
        along = x @ np.array([np.cos(angle), np.sin(angle)])
        return x, np.floor(2 * cycles * along).astype(int) % 2

    # Training, validation and test rows are draws of their own, standardised by the training rows.
    splits = draw_splits(draw, Sizes(train=1024, val=512, test=1024))
    return Task("stripes", 2, 4, *splits)  # two classes, a host of width 4


def main() -> None:
    torch.set_num_threads(1)  # tensors this small are slower on two threads
    for grow in (False, True):
        env = tamiyo.make_env(tasks=("own_task:stripes",))
        env.reset(seed=1)
        plan = {0: Op.GERMINATE, 1: Op.ADVANCE, 3: Op.ADVANCE} if grow else {}
        mlp_wide = [c.split("/")[0] for c in env.spaces.action.heads[2].choices].index("mlp_wide")
        points, ended = 0.0, False
        while not ended:
            op = plan.get(env.episode.epoch, Op.WAIT)
            _, reward, ended, _, _ = env.step(np.array([op, 1, mlp_wide, 0, 2, 1]))
            points += float(reward)
        name = "with one seed" if grow else "without growth"
        print(f"{name:15} test accuracy {env.test_accuracy():5.1f}, return {points:+6.1f} points")


if __name__ == "__main__":
    main()
