"""Host families: what can grow in an MLP, a 1-D and a 2-D CNN. The tables run in parallel, so one policy serves all."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import torch

from actors.config import require
from actors.env.blueprints.blends import GateLogits, channel_gate_logits, unit_gate_logits
from actors.env.blueprints.channel import channel_blueprints
from actors.env.blueprints.vector import MLP_BLUEPRINTS, NOOP, Blueprint


@dataclass(frozen=True)
class Family:
    name: str
    dims: int  # spatial dimensions; 0 where there are units and no channels
    blueprints: list[Blueprint]  # index 0 is NOOP; elsewhere NOOP stands for what this family does not have
    gate_logits: GateLogits

    def offered(self) -> list[bool]:
        return [b is not NOOP for b in self.blueprints]


VECTOR = Family("vector", 0, MLP_BLUEPRINTS, unit_gate_logits)
SEQUENCE = Family("sequence", 1, channel_blueprints(1), channel_gate_logits)
IMAGE = Family("image", 2, channel_blueprints(2), channel_gate_logits)
FAMILIES = {family.name: family for family in (VECTOR, SEQUENCE, IMAGE)}


def blueprint_choices() -> tuple[str, ...]:
    """Names of the policy's blueprint choices; where families differ, all of theirs."""
    columns = zip_longest(VECTOR.blueprints, SEQUENCE.blueprints, IMAGE.blueprints)
    return tuple(
        "/".join(dict.fromkeys(b.name for b in c if b and (b is not NOOP or i == 0))) for i, c in enumerate(columns)
    )


def register_blueprint(**by_family: Blueprint) -> int:
    """Add a blueprint of one's own, for each family that has it; returns its index.

    `register_blueprint(vector=mine)`, or `sequence=`, `image=`. Do so before environments are made, and in every
    process that makes one: in the module that has the task, say. Raises `ConfigError` for an unknown family, a taken
    name, or a blueprint that moves its host's function at its start.
    """
    require(bool(by_family), "register_blueprint needs a blueprint for at least one of " + ", ".join(FAMILIES))
    for name, blueprint in by_family.items():
        require(name in FAMILIES, f"{name!r} is no host family: choose from {', '.join(FAMILIES)}")
        taken = any(b.name == blueprint.name for b in FAMILIES[name].blueprints)
        require(not taken, f"the {name} family has a blueprint {blueprint.name!r} already")
        _check_start(FAMILIES[name], blueprint)
    for name, family in FAMILIES.items():
        family.blueprints.append(by_family.get(name, NOOP))
    return len(MLP_BLUEPRINTS) - 1


def _check_start(family: Family, blueprint: Blueprint, width: int = 8) -> None:
    """A blueprint starts as the identity, for one environment and for a stack."""
    rng = np.random.default_rng(0)
    space = (6,) * family.dims
    drawn = {name: torch.from_numpy(p.draw(rng)) for name, p in blueprint.shapes(width).items()}
    stacked = {name: torch.stack([t, t]) for name, t in drawn.items()}
    one = torch.from_numpy(rng.standard_normal((4, width, *space)))
    two = torch.stack([one, one], 1) if family.dims else torch.stack([one, one])
    for h, params, what in ((one, drawn, "one environment"), (two, stacked, "a stack of environments")):
        out = blueprint.forward(params, h, None)
        same = out.shape == h.shape and torch.equal(out, h)
        require(same, f"blueprint {blueprint.name!r} does not start as the identity for {what} (last layer at 0?)")
