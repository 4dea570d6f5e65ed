"""A task of your own: a function that takes a random generator and returns a `Task`.

    python examples/own_task.py        # two episodes on this task: without growth, and with one seed
    tamiyo train --preset quick --task examples.own_task:stripes    # train a policy on it (from the repository root)

A package can offer tasks through an entry point. `tamiyo tasks` then lists them by name:

    [project.entry-points."tamiyo.tasks"]
    stripes = "mypkg.tasks:stripes"
"""

from __future__ import annotations

import numpy as np
import torch

import tamiyo


def stripes(rng: np.random.Generator) -> tamiyo.Task:
    """Slanted stripes in the plane. Their angle and width vary with the seed."""
    angle, cycles = rng.uniform(0, np.pi), rng.uniform(1.0, 1.5)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.uniform(-1, 1, (n, 2))
        along = x @ np.array([np.cos(angle), np.sin(angle)])
        return x, np.floor(2 * cycles * along).astype(int) % 2

    # Each split is drawn separately and standardized by the statistics of the training rows.
    splits = tamiyo.draw_splits(draw, tamiyo.Sizes(train=1024, val=512, test=1024))
    return tamiyo.Task("stripes", 2, *splits, host_width=4)  # two classes, a host with 4 hidden units


def main() -> None:
    torch.set_num_threads(1)  # faster than two threads for tensors this small
    wide = tamiyo.blueprint_index("mlp_wide")
    plan = {
        0: tamiyo.SeedAction(tamiyo.Op.GERMINATE, slot=1, blueprint=wide, alpha_target=2, alpha_speed=1),
        1: tamiyo.SeedAction(tamiyo.Op.ADVANCE, slot=1),
        3: tamiyo.SeedAction(tamiyo.Op.ADVANCE, slot=1),
    }
    wait = tamiyo.SeedAction(tamiyo.Op.WAIT)
    for grow in (False, True):
        env = tamiyo.make_env(tasks=("own_task:stripes",))
        env.reset(seed=1)
        points, ended, epoch = 0.0, False, 0
        while not ended:
            _, reward, ended, _, _ = env.step(plan.get(epoch, wait) if grow else wait)
            points, epoch = points + float(reward), epoch + 1
        name = "with one seed" if grow else "without growth"
        print(f"{name:15} test accuracy {env.test_accuracy():5.1f}, return {points:+6.1f} points")


if __name__ == "__main__":
    main()
