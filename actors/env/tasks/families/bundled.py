"""The data sets bundled with scikit-learn. The splits are fixed: no episode of any seed trains on a test row."""

from __future__ import annotations

from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.env.tasks.family import TaskFamily
from actors.env.tasks.task import Sizes, Split, Task, split_rows, standardized

PERMUTATION_SEED = 20240501


class _Bundle(NamedTuple):
    description: str
    file: str
    num_classes: int
    sizes: Sizes


BUNDLES = {
    "digits": _Bundle("8x8 handwritten digits", "digits.csv.gz", 10, Sizes(898, 539, 360)),
    "wine": _Bundle("chemistry of wines, three growers", "wine_data.csv", 3, Sizes(89, 44, 45)),
    "breast_cancer": _Bundle("benign or malignant, from cell nuclei", "breast_cancer.csv", 2, Sizes(227, 205, 137)),
    "diabetes": _Bundle(
        "terciles of disease progression after a year: mostly noise", "diabetes_target.csv.gz", 3, Sizes(132, 203, 107)
    ),
}


def fixed_order(rows: int) -> NDArray[np.int64]:
    """Return the permutation that splits a data set of so many rows."""
    return np.random.default_rng(PERMUTATION_SEED).permutation(rows)


def load(name: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return all rows in the fixed order: x [N, F], y [N]."""
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    folder = Path(package.origin).parent / "datasets" / "data"  # importing it takes a second of a core in each process
    file = folder / BUNDLES[name].file
    if name == "diabetes":  # unscaled, since scikit-learn scales by statistics of all rows
        x, target = np.loadtxt(folder / "diabetes_data_raw.csv.gz"), np.loadtxt(file)
        y = np.digitize(target, np.quantile(target, [1 / 3, 2 / 3]))
    else:
        rows = np.loadtxt(file, delimiter=",", skiprows=int(file.suffix == ".csv"))  # a line of names
        x, y = rows[:, :-1], rows[:, -1].astype(np.int64)
    order = fixed_order(len(y))
    return x[order], y[order].astype(np.int64)


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
