"""Point clouds: mixtures of Gaussians, scikit-learn's `make_classification`, and linearly separable classes."""

from __future__ import annotations

import numpy as np

from actors.env.tasks.family import TaskFamily
from actors.env.tasks.task import Rows, Sizes, Task, draw_splits, split_rows, standardized, with_label_noise

SIZES = Sizes(1024, 1024, 1024)
MORE = Sizes(2048, 1024, 1024)
FEW = Sizes(256, 1024, 1024)


def clusters(
    rng: np.random.Generator, name: str = "clusters", sizes: Sizes = SIZES, centers: int = 5, classes: int = 5
) -> Task:
    """Classes of several Gaussian clusters each; centers and spread are drawn."""
    features = 6
    means = rng.standard_normal((classes * centers, features))
    spread = rng.uniform(0.35, 0.5)

    def draw(n: int) -> Rows:
        which = rng.integers(0, classes * centers, n)
        return means[which] + spread * rng.standard_normal((n, features)), which % classes

    return Task(name, classes, *draw_splits(draw, sizes))


def clusters_noisy(rng: np.random.Generator) -> Task:
    clean = clusters(rng, "clusters_noisy", sizes=FEW)
    return with_label_noise(clean, "clusters_noisy", 0.3, rng)


def clusters_many(rng: np.random.Generator) -> Task:
    return clusters(rng, "clusters_many", MORE, centers=2, classes=40)


def classification(rng: np.random.Generator, name: str = "classification", flipped: float = 0.0) -> Task:
    """scikit-learn's generator: four classes of three clusters at corners of a hypercube; 8 of 20 features matter."""
    from sklearn.datasets import make_classification

    x, y = make_classification(
        n_samples=sum(SIZES),
        n_features=20,
        n_informative=8,
        n_redundant=4,
        n_classes=4,
        n_clusters_per_class=3,
        flip_y=flipped,
        random_state=int(rng.integers(2**32)),
    )
    return Task(name, 4, *standardized(*split_rows(x, y, SIZES)))


def classification_noisy(rng: np.random.Generator) -> Task:
    """The same with a quarter of all labels drawn at random, in all splits."""
    return classification(rng, "classification_noisy", 0.25)


def linear(rng: np.random.Generator, features: int = 10, classes: int = 3) -> Task:
    """The argmax of three linear functions, which the host can learn without growing."""
    weights = rng.standard_normal((features, classes))

    def draw(n: int) -> Rows:
        x = rng.standard_normal((n, features))
        return x, (x @ weights).argmax(1)

    return Task("linear", classes, *draw_splits(draw, Sizes(512, 1024, 1024)))


FAMILIES = (
    TaskFamily("clusters", "train", "vector", "five classes of five Gaussian clusters each", clusters, SIZES),
    TaskFamily("clusters_many", "train", "vector", "forty classes of two Gaussian clusters each", clusters_many, MORE),
    TaskFamily(
        "clusters_noisy", "train", "vector", "clusters, few rows, a third of the labels wrong", clusters_noisy, FEW
    ),
    TaskFamily("classification", "train", "vector", "hypercube corners among distractors", classification, SIZES),
    TaskFamily(
        "classification_noisy",
        "train",
        "vector",
        "hypercube corners, a quarter of all labels random",
        classification_noisy,
        SIZES,
    ),
    TaskFamily("linear", "train", "vector", "linearly separable", linear, Sizes(512, 1024, 1024)),
)
