"""Suites: the task families of an evaluation, and its seeds, fixed before anything was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from actors.config import EnvConfig
from actors.env.tasks import families, find_family
from actors.env.tasks.families.mlbench import PROBLEMS
from actors.errors import UserError
from deploy.config.schema import RESEARCH_TASKS

REPORTING, SELECTION, TUNING = 20_261_124, 20_260_202, 20_260_303  # the first is new since recipes were compared
"""Run seeds. All randomness of an episode is keyed by them, so that what is chosen by one is reported by another."""

EPISODE_SEEDS = 20
"""Paired episodes of each family."""


@dataclass(frozen=True)
class Member:
    """One family of a suite."""

    family: str
    dont_grow: bool = False
    """Hosts of every size suffice: at price 1 neither a seed nor a column gains a point of J (`tamiyo tasks`), so the
    right thing is to WAIT."""
    headline: bool = True
    """Whether it counts in headlines; not where fewer than 200 training rows make one of validation worth points."""


TRIVIAL = ("cuboids", "shapes", "simplex", "smiley")
"""Families of mlbench that hosts of three units already solve."""
DONT_GROW = ("two_normals", "threenorm", "twonorm", "waveform", *TRIVIAL)

MLBENCH = tuple(Member(name, dont_grow=name in DONT_GROW) for name in PROBLEMS)
"""Families that others listed."""

HELDOUT = (
    Member("checkerboard"),
    Member("decision_tree"),
    Member("friedman"),
    Member("parity"),
    Member("majority", dont_grow=True),
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


def tuning_families() -> tuple[str, ...]:
    """Those that the policies of the study train on."""
    return RESEARCH_TASKS


def protocol(config: EnvConfig, rent_weight: float) -> EnvConfig:
    """The environment that every player is measured in: that of `config`, with widths of each family's range, one
    price that every player observes, and paid in J to a visible horizon."""
    if config.isolation != "shadow" or config.profile != "tamiyo":
        raise UserError("an evaluation plays env.isolation shadow and env.profile tamiyo: train a policy with these")
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
        compile=False,
        cuda_graph=False,
    )


def on_family(config: EnvConfig, family: str) -> EnvConfig:
    find_family(family)
    return replace(config, tasks=(family,))
