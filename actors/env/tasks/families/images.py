"""Images: the bundled digits as 8x8 images, and CIFAR-10, loaded by torchvision."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from actors.config import ConfigError
from actors.env.tasks.families.bundled import BUNDLES, fixed_order, load
from actors.env.tasks.family import DataFiles, TaskFamily
from actors.env.tasks.task import Sizes, Split, Task, split_rows, standardized

CIFAR_SIZES = Sizes(10_000, 2_000, 10_000)
"""Fewer than all 50,000 rows: an episode uses about 25,600, and every environment of a fleet holds its own copy."""


@cache
def _digit_splits() -> tuple[Split, Split, Split]:
    x, y = load("digits")
    return standardized(*split_rows(x.reshape(-1, 1, 8, 8), y, BUNDLES["digits"].sizes))


def digits_image(rng: np.random.Generator) -> Task:
    return Task("digits_image", 10, *_digit_splits(), kind="image")


def cifar10(files: DataFiles) -> Task:
    """Load CIFAR-10; raise `ConfigError` if the data or torchvision is missing."""
    if files.data_dir is None:
        raise ConfigError("task 'cifar10' needs env.data_dir: the folder that holds cifar-10-batches-py")
    return Task("cifar10", 10, *_cifar_splits(files.data_dir, files.download), kind="image")


@cache
def _cifar_splits(data_dir: str, download: bool) -> tuple[Split, Split, Split]:
    root = Path(data_dir).expanduser()
    if not download and not (root / "cifar-10-batches-py").is_dir():
        raise ConfigError(
            f"task 'cifar10': {root} has no folder cifar-10-batches-py; set env.data_dir to its parent folder, "
            "or set env.download to download 170 MB"
        )
    try:
        from torchvision.datasets import CIFAR10
    except ImportError as error:
        raise ConfigError("task 'cifar10' needs torchvision: pip install 'tamiyo[vision]'") from error
    except RuntimeError as error:  # built for another version of torch
        raise ConfigError(
            f"task 'cifar10': torchvision does not match this torch ({error}): install both together, from one index"
        ) from error
    try:
        learning = CIFAR10(str(root), train=True, download=download)
        testing = CIFAR10(str(root), train=False, download=download)
    except (RuntimeError, OSError) as error:  # files missing or damaged, or the download failed
        raise ConfigError(f"task 'cifar10': cannot be loaded from {root}: {error}") from error
    order = fixed_order(len(learning.data))
    kept = order[: CIFAR_SIZES.train + CIFAR_SIZES.val]
    train, val, _ = split_rows(
        np.asarray(learning.data)[kept].transpose(0, 3, 1, 2),
        np.asarray(learning.targets)[kept],
        Sizes(CIFAR_SIZES.train, CIFAR_SIZES.val, 0),
    )
    pixels = np.asarray(testing.data).transpose(0, 3, 1, 2).astype(np.float32)
    return standardized(train, val, Split(pixels, np.asarray(testing.targets, dtype=np.int64)))


FAMILIES = (
    TaskFamily("digits_image", "train", "image", "the digits as images", digits_image, BUNDLES["digits"].sizes),
    TaskFamily("cifar10", "heldout", "image", "CIFAR-10 from env.data_dir", None, CIFAR_SIZES, from_files=cifar10),
)
