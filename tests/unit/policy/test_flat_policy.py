"""Action spaces without op and slot, as Gymnasium environments need them."""

from __future__ import annotations

import numpy as np
import pytest

from actors.types.actions import ActionMasks, forced_steps, independent_spec
from actors.types.spaces import Spaces
from tests.support.learning.toy import toy_network

SIZES = (4, 2, 3)
SPACES = Spaces.flat(independent_spec(SIZES), 5)


def test_every_head_of_an_independent_spec_is_always_relevant() -> None:
    spec = independent_spec(SIZES)
    assert (spec.sizes, spec.offsets, spec.rest_size) == (SIZES, (0, 4, 6), 5)
    actions = np.array([[3, 1, 2], [0, 0, 0]])
    assert spec.relevance_table[actions[..., 0]].all()
    masks = np.ones((2, 9), dtype=np.bool_)
    masks[1] = False
    masks[1, [0, 4, 6]] = True
    assert forced_steps(spec, actions, masks).tolist() == [False, True]
    assert (ActionMasks.of_flat(spec, masks).in_force(spec, actions) == masks).all()
    assert Spaces.from_json(SPACES.to_json()) == SPACES
    assert independent_spec([2]).names == ("action",)


def test_a_flat_mask_of_conditioned_heads_is_refused() -> None:
    with pytest.raises(ValueError, match="which slots are legal"):
        ActionMasks.of_flat(toy_network().spaces.action, np.ones((1, 10), dtype=np.bool_))
