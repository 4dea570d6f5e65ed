"""Suites: the task families of an evaluation, and its seeds, fixed before anything was measured."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

from actors.config import EnvConfig
from actors.env.tasks import families, find_family
from actors.env.tasks.families.mlbench import PROBLEMS
from actors.errors import UserError
from actors.slots.objective import Prices

REPORTING, TUNING = 20_270_115, 20_260_303
"""Run seeds. All randomness of an episode is keyed by them, so that what is chosen by one is reported by another. The
first is new since policies and rules were compared."""

PRICES = (0.5, 1.0, 2.0, 4.0)
"""Points of validation accuracy per doubling of the parameters, at which all players are compared."""

FREE, PRICED = "c = 0", "c = p/4"
COMPUTE_SHARES = {FREE: 0.0, PRICED: 0.25}
"""The price of a doubling of the training FLOPs, as a share of that of the parameters."""
CONDITIONS = {name: tuple(Prices(p, share * p) for p in PRICES) for name, share in COMPUTE_SHARES.items()}
"""The prices at which all players are compared, without and with one of compute; each has its tables and targets."""
ALL_PRICES = tuple(prices for group in CONDITIONS.values() for prices in group)
NOMINAL = Prices(1.0, 0.0)
"""Stands for prices that nobody looks at."""

EPISODE_SEEDS = 16
"""Paired episodes of each family."""

LEAST_ROWS = 200
"""Training rows of a family that is reported unless it is named: with fewer, one row of validation is worth points."""

TRIVIAL = ("cuboids", "shapes", "simplex", "smiley")
"""Families of mlbench that hosts of three units already solve."""

MLBENCH = tuple(PROBLEMS)
"""Families that others listed."""

HELDOUT = (
    "checkerboard", "decision_tree", "friedman", "parity", "majority", "xor", "wave_forms", "gratings", "diabetes",
    *(name for name in MLBENCH if name not in TRIVIAL),
)  # fmt: skip
SUITES = ("heldout", "mlbench", "train")


def run_seed(suite: str) -> int:
    """Return the run seed of a suite's episodes. On training families everything is chosen, and nothing is reported."""
    return TUNING if suite == "train" else REPORTING


def first_seed(name: str) -> int:
    """Return the first episode seed of a family, or of a cell with this name; the others follow it.

    An episode draws its width, horizon and minibatches by its seed alone, so families that shared their seeds would all
    have the same few of them.
    """
    return 1000 * (zlib.crc32(name.encode()) % 1_000_000)


def members(suite: str) -> tuple[str, ...]:
    """Return the families of one of `SUITES`."""
    if suite == "train":
        return tuple(family.name for family in families("train") if family.factory is not None)
    return HELDOUT if suite == "heldout" else MLBENCH


def reported(suite: str, only: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the families that an evaluation reports: those that are named, else all of the suite with enough rows and
    MLPs as hosts, since convolutional hosts take fifty times as long on a CPU. Raises `UserError` for a family that is
    not in the suite."""
    known = members(suite)
    for name in only:
        if name not in known:
            raise UserError(f"{name!r} is not in the suite {suite}: choose from {', '.join(known)}")
    counted = [f for f in map(find_family, known) if f.sizes.train >= LEAST_ROWS and f.kind == "vector"]
    return tuple(only) or tuple(family.name for family in counted)


def protocol(config: EnvConfig, prices: Prices) -> EnvConfig:
    """The environment that every player is measured in: that of `config`, with widths of each family's range, one
    learning rate, prices that every player observes, and paid in J to a visible horizon.

    The rate is constant, so that what a host has reached after some epochs does not depend on its horizon.
    """
    if config.profile != "tamiyo":
        raise UserError("an evaluation plays env.profile tamiyo: train a policy with it")
    return replace(
        config,
        tasks=("spirals",),  # each cell has one family of its own
        points_per_doubling=prices.doubling,
        points_per_compute_doubling=prices.compute_doubling,
        reward="objective",
        reference="untrained",
        time_limit="terminated",
        host_width=None,
        host_lr=EnvConfig.host_lr,
        lr_decay=0.0,
        drop_features=0.0,
        device="cpu",
        backend="auto",
        cuda_graph=False,
    )


def on_family(config: EnvConfig, family: str) -> EnvConfig:
    find_family(family)
    return replace(config, tasks=(family,))
