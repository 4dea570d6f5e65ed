"""`ActingPolicy` gives the same results as the network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from actors.config import PolicyConfig
from actors.policy.acting.policy import ActingPolicy
from actors.policy.network import EmptyMask, FactoredRecurrentActorCritic
from actors.policy.publish import to_weights
from actors.types.actions import ActionMasks, ActionSpec, independent_spec
from actors.types.spaces import Spaces
from tests.support.learning.toy import SPACES, random_masks

FLAT = Spaces(independent_spec((4, 2, 5)), base_size=6, slot_size=0, slots=0, num_blueprints=0)
ONE = Spaces(independent_spec((3,)), base_size=6, slot_size=0, slots=0, num_blueprints=0)
KINDS: list[tuple[Spaces, dict[str, Any]]] = [
    (SPACES, {}),
    (SPACES, {"core": "feedforward", "num_layers": 2, "probability_floor": 0.0}),
    (SPACES, {"core": "lstm+memory", "num_layers": 2}),
    (SPACES, {"critic": "q_op", "bootstrap": "sampled", "popart": False}),
    (SPACES, {"heads": "independent", "probability_floor": 0.05}),
    (SPACES, {"encoder": "flat", "critic": "q_op"}),
    (SPACES, {"causal_masks": False}),
    (SPACES, {"blind": True}),
    (FLAT, {"encoder": "flat"}),
    (ONE, {"encoder": "flat", "core": "lstm+memory", "probability_floor": 0.0}),
]


def network(spaces: Spaces, options: dict[str, Any], seed: int) -> FactoredRecurrentActorCritic:
    """Build a network in which all weights and statistics differ from their initial values."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "encoder_size": 12, "head_size": 8, "memory_cells": 4, "memory_size": 6}
    made = FactoredRecurrentActorCritic(spaces, PolicyConfig(**sizes, **options)).eval()
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.5 * torch.randn_like(p))
        for name, b in made.named_buffers():
            if name.endswith(("mean", "variance", "std")) and not name.startswith("value_normalizer.mean"):
                b.copy_(b + torch.rand_like(b))
    return made


def masks_of(spec: ActionSpec, rng: np.random.Generator, count: int) -> ActionMasks:
    if spec.conditioned:
        rows = [random_masks(rng, spec) for _ in range(count)]
        assert all(r.slot is not None for r in rows)
        return ActionMasks(*(np.stack([getattr(r, name) for r in rows]) for name in ("op", "slot", "rest")))
    flat = rng.random((count, spec.flat_size)) < 0.5
    flat[:, [o + n - 1 for o, n in zip(spec.offsets, spec.sizes, strict=True)]] = True
    return ActionMasks.of_flat(spec, flat)


def check_alike(made: FactoredRecurrentActorCritic, acting: ActingPolicy, seed: int) -> None:
    rng, spaces = np.random.default_rng(seed), made.spaces
    for count in (1, 7):
        ours = theirs = made.initial_state(count)
        for step in range(6):
            obs = 3 * rng.standard_normal((count, spaces.obs_size)).astype(np.float32)
            blueprints = rng.integers(-1, max(1, spaces.num_blueprints), (count, spaces.slots))
            masks, noise = masks_of(spaces.action, rng, count), rng.random((count, len(spaces.action.heads)))
            decided, ours = acting.act(obs, blueprints, masks, ours, noise, step % 3 == 0)
            expected, theirs = made.act(obs, blueprints, masks, theirs, noise, step % 3 == 0)
            for mine, other in zip(decided, expected, strict=True):
                assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
                np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)
            for mine, other in zip(ours, theirs, strict=True):
                torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("spaces", "options"), KINDS)
def test_decisions_and_states_equal_those_of_the_network_also_with_new_weights(
    spaces: Spaces, options: dict[str, Any]
) -> None:
    made = network(spaces, options, seed=0)
    acting = ActingPolicy(made)
    assert acting.form == ("eager" if made.config.core == "lstm+memory" else "kernel")
    check_alike(made, acting, seed=1)
    made.load_state_dict(network(spaces, options, seed=2).state_dict())
    with pytest.raises(AssertionError):
        check_alike(made, acting, seed=3)
    acting.load(to_weights(made, 1, 0, 1))
    check_alike(made, acting, seed=4)


@pytest.mark.parametrize("floor", [0.0, 0.002])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_head_without_a_legal_choice_is_an_error(floor: float, deterministic: bool) -> None:
    acting = ActingPolicy(network(SPACES, {"probability_floor": floor}, seed=0))
    rng = np.random.default_rng(0)
    masks = masks_of(SPACES.action, rng, 3)
    masks.op[1] = False
    obs, noise = np.zeros((3, SPACES.obs_size), np.float32), rng.random((3, 4))
    with pytest.raises(EmptyMask):
        acting.act(obs, np.zeros((3, 2), np.int64), masks, acting.initial_state(3), noise, deterministic)
