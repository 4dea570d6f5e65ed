"""`seed_spaces`: the spaces of a policy that grows hosts, or a user's own model."""

from __future__ import annotations

from actors.blueprints.family import blueprint_choices
from actors.slots.observation import obs_spec
from actors.types.actions import seed_action_spec
from actors.types.spaces import Spaces


def seed_spaces(slots: int, profile: str = "tamiyo") -> Spaces:
    """Return the action and observation spaces of hosts with so many slots of both kinds, as the policy needs them."""
    layout, blueprints = obs_spec(slots), blueprint_choices()
    spec = seed_action_spec(slots, blueprints, profile)
    return Spaces(spec, layout.base_size, layout.slot_size, slots, len(blueprints))
