"""`seed_spaces`: the spaces of a policy that grows hosts, or a user's own model."""

from __future__ import annotations

from actors.blueprints.family import blueprint_choices
from actors.slots.observation import BASE, SLOT
from actors.types.actions import seed_action_spec
from actors.types.spaces import Spaces


def seed_spaces(slots: int, profile: str = "tamiyo") -> Spaces:
    """Return the action and observation spaces of hosts with so many slots of both kinds, as the policy needs them."""
    blueprints = blueprint_choices()
    base_size, slot_size = (sum(feature.size for feature in table) for table in (BASE, SLOT))
    return Spaces(seed_action_spec(slots, blueprints, profile), base_size, slot_size, slots, len(blueprints))
