"""The data sets bundled with scikit-learn. The splits are fixed: no episode of any seed trains on a test row."""

from __future__ import annotations

from functools import cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.env.tasks.family import TaskFamily
from actors.env.tasks.task import Sizes, Split, Task, split_rows, standardized

PERMUTATION_SEED = 20240501


class _Bundle(NamedTuple):
    description: str
    loader: str
    num_classes: int
    sizes: Sizes


BUNDLES = {
    "digits": _Bundle("8x8 handwritten digits", "load_digits", 10, Sizes(898, 539, 360)),
    "wine": _Bundle("chemistry of wines, three growers", "load_wine", 3, Sizes(89, 44, 45)),
    "breast_cancer": _Bundle("benign or malignant, from cell nuclei", "load_breast_cancer", 2, Sizes(227, 205, 137)),
    "diabetes": _Bundle(
        "terciles of disease progression after a year: mostly noise", "load_diabetes", 3, Sizes(132, 203, 107)
    ),
}


def fixed_order(rows: int) -> NDArray[np.int64]:
    """Return the permutation that splits a data set of so many rows."""
    return np.random.default_rng(PERMUTATION_SEED).permutation(rows)


def load(name: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return all rows in the fixed order: x [N, F], y [N]."""
    from sklearn import datasets

    if name == "diabetes":  # unscaled, since scikit-learn scales by statistics of all rows
        bunch = datasets.load_diabetes(scaled=False)
        y = np.digitize(bunch.target, np.quantile(bunch.target, [1 / 3, 2 / 3]))
    else:
        bunch = getattr(datasets, BUNDLES[name].loader)()
        y = bunch.target
    order = fixed_order(len(y))
    return bunch.data[order], y[order].astype(np.int64)


@cache
def _splits(name: str) -> tuple[Split, Split, Split]:
    return standardized(*split_rows(*load(name), BUNDLES[name].sizes))


def _bundled(name: str, rng: np.random.Generator) -> Task:
    bundle = BUNDLES[name]
    return Task(name, bundle.num_classes, *_splits(name))


FAMILIES = tuple(
    TaskFamily(
        name,
        "heldout" if name == "diabetes" else "train",
        "vector",
        bundle.description,
        partial(_bundled, name),
        bundle.sizes,
    )
    for name, bundle in BUNDLES.items()
)
