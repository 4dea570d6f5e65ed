"""A blind policy reads no observation; and the ablation without causal masks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from actors.config import EnvConfig, PolicyConfig
from actors.env.seed_fleet import SeedTrainingFleet
from actors.policy.network import FactoredRecurrentActorCritic
from actors.rollout.wave import Provenance, run_wave
from actors.slots.spaces import seed_spaces
from actors.types.actions import Op
from learner.ppo.batch import make_batch
from tests.support.learning.batches import toy_ppo

CONFIG = EnvConfig(tasks=("spirals",), horizon_epochs=5, inner_steps=2, device="cpu")
SOURCE = Provenance(0, 0, 8, 3)


def _network(**policy: bool) -> FactoredRecurrentActorCritic:
    torch.manual_seed(0)
    return FactoredRecurrentActorCritic(
        seed_spaces(5), PolicyConfig(hidden_size=16, encoder_size=16, head_size=16, **policy)
    )


@pytest.mark.parametrize("blind", [True, False])
def test_a_blind_policy_acts_alike_whatever_it_sees(blind: bool) -> None:
    network = _network(blind=blind)
    fleet = SeedTrainingFleet(CONFIG, 2, 3)
    seen = fleet.reset([1, 2])
    rng = np.random.default_rng(0)
    other = rng.standard_normal(seen.obs.shape).astype(np.float32)
    noise, state = np.full((2, 6), 0.5), network.initial_state(2)
    network.update_normalizer(torch.from_numpy(other))
    one, _ = network.act(seen.obs, seen.blueprint_indices, seen.masks, state, noise)
    two, _ = network.act(other, seen.blueprint_indices + 1, seen.masks, state, noise)
    assert np.array_equal(one.values, two.values) == blind
    assert np.array_equal(one.log_probs, two.log_probs) == blind


def test_without_causal_masks_every_head_acts_and_learns_and_ratios_start_at_one() -> None:
    network = _network(causal_masks=False)
    fleet = SeedTrainingFleet(CONFIG, 4, 3)
    episodes = run_wave(fleet, network, [1, 2, 3, 4], SOURCE)
    actions, log_probs = (np.concatenate([getattr(e, name) for e in episodes]) for name in ("actions", "log_probs"))
    waits = actions[:, 0] == Op.WAIT
    assert len(set(actions[waits, 1].tolist())) > 2  # irrelevant, and drawn all the same
    assert (log_probs[waits, 1:] < 0).all()
    assert not any(episode.illegal_actions for episode in fleet.episodes)
    assert toy_ppo(1e-3, network)(make_batch(episodes, network.spaces), 0, 0)["ratio_error"] < 1e-5
