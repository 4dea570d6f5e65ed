"""A policy whose most likely op is always WAIT, although it is all but certain to act some time."""

from __future__ import annotations

import numpy as np
import torch

from actors.config import PolicyConfig
from actors.policy.network import FactoredRecurrentActorCritic
from actors.types.actions import ActionMasks, Op
from actors.types.spaces import Spaces


def slow_to_act(spaces: Spaces, wait: float) -> FactoredRecurrentActorCritic:
    """Return a network that waits with this probability at every step, and otherwise takes the second op."""
    torch.manual_seed(0)
    network = FactoredRecurrentActorCritic(spaces, PolicyConfig(probability_floor=0.0))
    with torch.no_grad():
        last = network.heads.op[2]
        assert isinstance(last, torch.nn.Linear)
        last.weight.zero_()
        last.bias.fill_(-30.0)
        last.bias[Op.WAIT], last.bias[Op.GERMINATE] = np.log(wait), np.log(1.0 - wait)
    return network


def everything_legal(spaces: Spaces) -> ActionMasks:
    """Return the masks of a state, without a batch dimension, in which every choice is legal."""
    ops, slots = spaces.action.num_ops, spaces.action.num_slots
    shapes = (ops,), (ops, slots), (ops, slots, spaces.action.rest_size)
    return ActionMasks(*(np.ones(shape, dtype=np.bool_) for shape in shapes))
