"""`Family`: the blueprints of one kind of host. The tables of all families have the same indices, for one policy.

An index names a blueprint that grows in the stream of a host, or a column, or, in a family that lacks it, nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from actors.blueprints.blends import GateLogits, channel_gate_logits, unit_gate_logits
from actors.blueprints.blueprint import NOOP, Blueprint
from actors.blueprints.channel import channel_blueprints
from actors.blueprints.vector import MLP_BLUEPRINTS
from actors.config import ConfigError, require


@dataclass(frozen=True)
class ColumnBlueprint:
    """A column: a second, independent network of the host's architecture, which `actors.env.hosts.host` makes.

    It reads the host's input, and its logits are mixed with the host's: `(1 - alpha) * logits + alpha * column(x)`. In
    TRAINING it learns either what the average of both still lacks, with the host constant, or the task itself.
    """

    name: str
    scale: float
    """Width of the column in multiples of the host's width."""

    def __post_init__(self) -> None:
        require(self.scale > 0, f"column blueprint {self.name!r} has scale {self.scale}: it must be positive")


SCALES = {"column_half": 0.5, "column_same": 1.0, "column_double": 2.0, "column_quad": 4.0}
COLUMNS = [ColumnBlueprint(name, scale) for name, scale in SCALES.items()]


@dataclass(frozen=True)
class Family:
    """A kind of host: MLPs (`vector`), 1-D CNNs (`sequence`) or 2-D CNNs (`image`), and what can grow in them."""

    name: str
    dims: int  # spatial dimensions of hidden tensors; 0 for MLPs
    blueprints: list[Blueprint]  # for the stream; NOOP at index 0, and wherever this family has none
    columns: list[ColumnBlueprint | None]  # for column slots; as many
    gate_logits: GateLogits  # of the blend `gated`

    @property
    def names(self) -> tuple[str, ...]:
        """The names by index, "noop" where this family has no blueprint."""
        return tuple((column or stream).name for stream, column in zip(self.blueprints, self.columns, strict=True))


def _family(name: str, dims: int, blueprints: list[Blueprint], gate_logits: GateLogits) -> Family:
    """Make a family with the built-in columns, whose indices follow those of the stream's blueprints."""
    columns: list[ColumnBlueprint | None] = [*[None] * len(blueprints), *COLUMNS]
    return Family(name, dims, [*blueprints, *[NOOP] * len(COLUMNS)], columns, gate_logits)


VECTOR = _family("vector", 0, MLP_BLUEPRINTS, unit_gate_logits)
SEQUENCE = _family("sequence", 1, channel_blueprints(1), channel_gate_logits)
IMAGE = _family("image", 2, channel_blueprints(2), channel_gate_logits)
FAMILIES = {family.name: family for family in (VECTOR, SEQUENCE, IMAGE)}


def blueprint_choices() -> tuple[str, ...]:
    """Return the name of each blueprint index; where families differ, their names joined by a slash."""
    indices = zip(*(family.names for family in FAMILIES.values()), strict=True)
    return tuple("/".join(dict.fromkeys(n for n in names if n != NOOP.name)) or NOOP.name for names in indices)


def blueprint_index(name: str) -> int:
    """Return the index of a blueprint by its name in any family, as `SeedAction(blueprint=...)` takes it.

    Raises `ConfigError` for an unknown name.
    """
    for family in FAMILIES.values():
        if name != NOOP.name and name in family.names:
            return family.names.index(name)
    raise ConfigError(f"there is no blueprint {name!r}: choose from {', '.join(blueprint_choices()[1:])}")


def register_blueprint(**by_family: Blueprint | ColumnBlueprint) -> int:
    """Register a blueprint, separately for each host family that has it; return its index.

    `register_blueprint(vector=mine)`, or with `sequence=` or `image=`. A `Blueprint` grows in the stream, a
    `ColumnBlueprint` in column slots. Register it before environments are made, in every process that makes one; the
    module of a custom task is a good place. Raise `ConfigError` for an unknown family, a name that is taken, or a
    blueprint that is not the identity at initialization.
    """
    require(bool(by_family), "register_blueprint needs a blueprint for at least one of " + ", ".join(FAMILIES))
    for name, blueprint in by_family.items():
        require(name in FAMILIES, f"{name!r} is not a host family: choose from {', '.join(FAMILIES)}")
        family = FAMILIES[name]
        require(blueprint.name not in family.names, f"the {name} family already has a blueprint {blueprint.name!r}")
        if isinstance(blueprint, Blueprint):
            _check_start(family, blueprint)
    for name, family in FAMILIES.items():
        new = by_family.get(name)
        family.blueprints.append(new if isinstance(new, Blueprint) else NOOP)
        family.columns.append(new if isinstance(new, ColumnBlueprint) else None)
    return len(VECTOR.blueprints) - 1


def _check_start(family: Family, blueprint: Blueprint, width: int = 8) -> None:
    """Require that a blueprint is the identity at initialization, for one environment and for a stack."""
    rng = np.random.default_rng(0)
    space = (6,) * family.dims
    drawn = {name: torch.from_numpy(p.draw(rng)) for name, p in blueprint.shapes(width).items()}
    stacked = {name: torch.stack([t, t]) for name, t in drawn.items()}
    one = torch.from_numpy(rng.standard_normal((4, width, *space)))
    two = torch.stack([one, one], 1) if family.dims else torch.stack([one, one])
    for h, params, what in ((one, drawn, "one environment"), (two, stacked, "a stack of environments")):
        out = blueprint.forward(params, h, None)
        same = out.shape == h.shape and torch.equal(out, h)
        require(
            same,
            f"blueprint {blueprint.name!r} is not the identity at initialization for {what}: start its last layer at 0",
        )
