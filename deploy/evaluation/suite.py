"""Suites: the task families of an evaluation, and its seeds, fixed before anything was measured."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from actors.config import EnvConfig
from actors.env.tasks import families, find_family
from actors.env.tasks.families.mlbench import PROBLEMS
from actors.errors import UserError
from deploy.config.schema import RESEARCH_TASKS

REPORTING, TUNING = 20_270_115, 20_260_303
"""Run seeds. All randomness of an episode is keyed by them, so that what is chosen by one is reported by another. The
first is new since policies and rules were compared."""

PRICES = (0.5, 1.0, 2.0, 4.0)
"""Points of validation accuracy per doubling of the parameters, at which all players are compared."""

EPISODE_SEEDS = 16
"""Paired episodes of each family."""


def run_seed(suite: str) -> int:
    """Return the run seed of a suite's episodes. On training families everything is chosen, and nothing is reported."""
    return TUNING if suite == "train" else REPORTING


def first_seed(name: str) -> int:
    """Return the first episode seed of a family, or of a cell with this name; the others follow it.

    An episode draws its width, horizon and minibatches by its seed alone, so families that shared their seeds would all
    have the same few of them.
    """
    return 1000 * (zlib.crc32(name.encode()) % 1_000_000)


@dataclass(frozen=True)
class Member:
    """One family of a suite."""

    family: str
    headline: bool = True
    """Whether it counts in headlines; not where fewer than 200 training rows make one of validation worth points."""


TRIVIAL = ("cuboids", "shapes", "simplex", "smiley")
"""Families of mlbench that hosts of three units already solve."""

MLBENCH = tuple(Member(name) for name in PROBLEMS)
"""Families that others listed."""

HELDOUT = (
    Member("checkerboard"),
    Member("decision_tree"),
    Member("friedman"),
    Member("parity"),
    Member("majority"),
    Member("xor"),
    Member("wave_forms"),
    Member("gratings"),
    Member("diabetes", headline=False),
    *(member for member in MLBENCH if member.family not in TRIVIAL),
)
SUITES = ("heldout", "mlbench", "train")


def members(suite: str, only: Sequence[str] = ()) -> tuple[Member, ...]:
    """Of one of `SUITES`, or those that are named. Raises `UserError` for a family that is not in it."""
    if suite in ("heldout", "mlbench"):
        known = HELDOUT if suite == "heldout" else MLBENCH
    else:
        known = tuple(Member(f.name, headline=f.sizes.train >= 200) for f in families("train") if f.factory is not None)
    if not only:
        return known
    by_name = {m.family: m for m in known}
    for name in only:
        if name not in by_name:
            raise UserError(f"{name!r} is not in the suite {suite}: choose from {', '.join(by_name)}")
    return tuple(by_name[name] for name in only)


def reported(suite: str, only: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the families that an evaluation reports: those that are named, else all of the suite that count and have
    MLPs as hosts, since convolutional hosts take fifty times as long on a CPU."""
    found = members(suite, only)
    return tuple(m.family for m in found if only or (m.headline and find_family(m.family).kind == "vector"))


def tuning_families() -> tuple[str, ...]:
    """Those that the policies of the study train on."""
    return RESEARCH_TASKS


def protocol(config: EnvConfig, rent_weight: float = 1.0) -> EnvConfig:
    """The environment that every player is measured in: that of `config`, with widths of each family's range, one
    price that every player observes, and paid in J to a visible horizon."""
    if config.profile != "tamiyo":
        raise UserError("an evaluation plays env.profile tamiyo: train a policy with it")
    return replace(
        config,
        tasks=("spirals",),  # each cell has one family of its own
        rent_weight=rent_weight,
        rent_warmup_updates=0,
        reward="objective",
        reference="untrained",
        twin_coef=None,
        time_limit="terminated",
        observe_time=True,
        host_width=None,
        drop_features=0.0,
        device="cpu",
        backend="auto",
        cuda_graph=False,
    )


def on_family(config: EnvConfig, family: str) -> EnvConfig:
    find_family(family)
    return replace(config, tasks=(family,))
