"""`Family`: the blueprints of one kind of host. The tables of all families have the same indices, for one policy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import torch

from actors.config import ConfigError, require
from actors.env.blueprints.blends import GateLogits, channel_gate_logits, unit_gate_logits
from actors.env.blueprints.blueprint import NOOP, Blueprint
from actors.env.blueprints.channel import channel_blueprints
from actors.env.blueprints.vector import MLP_BLUEPRINTS


@dataclass(frozen=True)
class Family:
    """A kind of host: MLPs (`vector`), 1-D CNNs (`sequence`) or 2-D CNNs (`image`), and what can grow in them."""

    name: str
    dims: int  # spatial dimensions of hidden tensors; 0 for MLPs
    blueprints: list[Blueprint]  # NOOP at index 0, and wherever this family lacks a blueprint
    gate_logits: GateLogits  # of the blend `gated`

    def offered(self) -> list[bool]:
        """Return which indices this family has a blueprint for."""
        return [b is not NOOP for b in self.blueprints]


VECTOR = Family("vector", 0, MLP_BLUEPRINTS, unit_gate_logits)
SEQUENCE = Family("sequence", 1, channel_blueprints(1), channel_gate_logits)
IMAGE = Family("image", 2, channel_blueprints(2), channel_gate_logits)
FAMILIES = {family.name: family for family in (VECTOR, SEQUENCE, IMAGE)}


def blueprint_choices() -> tuple[str, ...]:
    """Return the name of each blueprint index; where families differ, their names joined by a slash."""
    columns = zip_longest(VECTOR.blueprints, SEQUENCE.blueprints, IMAGE.blueprints)
    return tuple(
        "/".join(dict.fromkeys(b.name for b in c if b and (b is not NOOP or i == 0))) for i, c in enumerate(columns)
    )


def blueprint_index(name: str) -> int:
    """Return the index of a blueprint by its name in any family, as `SeedAction(blueprint=...)` takes it.

    Raises `ConfigError` for an unknown name.
    """
    for family in FAMILIES.values():
        for index, blueprint in enumerate(family.blueprints):
            if blueprint.name == name:
                return index
    raise ConfigError(f"there is no blueprint {name!r}: choose from {', '.join(blueprint_choices()[1:])}")


def register_blueprint(**by_family: Blueprint) -> int:
    """Register a blueprint, separately for each host family that has it; return its index.

    `register_blueprint(vector=mine)`, or with `sequence=` or `image=`. Register it before environments are made, in
    every process that makes one; the module of a custom task is a good place. Raise `ConfigError` for an unknown
    family, a name that is taken, or a blueprint that is not the identity at initialization.
    """
    require(bool(by_family), "register_blueprint needs a blueprint for at least one of " + ", ".join(FAMILIES))
    for name, blueprint in by_family.items():
        require(name in FAMILIES, f"{name!r} is not a host family: choose from {', '.join(FAMILIES)}")
        taken = any(b.name == blueprint.name for b in FAMILIES[name].blueprints)
        require(not taken, f"the {name} family already has a blueprint {blueprint.name!r}")
        _check_start(FAMILIES[name], blueprint)
    for name, family in FAMILIES.items():
        family.blueprints.append(by_family.get(name, NOOP))
    return len(MLP_BLUEPRINTS) - 1


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
