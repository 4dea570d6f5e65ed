"""Chunks of an episode that was shipped in segments start from the same states as chunks of the whole episode."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor

from actors.codec import decode_episode, encode_episode
from actors.config import PolicyConfig
from actors.gym.fleet import GymFleet
from actors.gym.unified import UnifiedEnv
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.state import PolicyState
from actors.rollout.stream import EpisodeStream
from actors.rollout.wave import Provenance
from actors.types.episode import Episode, InvalidEpisode
from learner.ppo.batch import make_batch
from learner.ppo.minibatch import replay
from tests.support.env.gym_envs import Scripted
from tests.support.learning.batches import toy_ppo

STEPS, STRIDE, CHANGED_AT = 24, 2, 11


class Long(Scripted):
    """An episode of `STEPS` steps."""

    def reset(self, **kwargs: object) -> tuple[np.ndarray, dict[str, object]]:
        found = super().reset(**kwargs)  # type: ignore[arg-type]
        self.length, self.truncates, self.scale = STEPS, False, 1.0
        return found


def fleet() -> GymFleet:
    envs = [lambda: UnifiedEnv(Long(), "long")] * 2
    return GymFleet("long", SyncVectorEnv(envs, autoreset_mode=AutoresetMode.DISABLED), lambda row: row)


def networks(core: str) -> list[FactoredRecurrentActorCritic]:
    """The weights of the first steps, those of the later ones, and those that learn from both."""
    torch.manual_seed(0)
    config = PolicyConfig(core=core, hidden_size=12, encoder_size=10, head_size=8, memory_cells=4, memory_size=5)  # type: ignore[arg-type]
    found = [FactoredRecurrentActorCritic(fleet().spaces, config)]
    for _ in range(2):
        found.append(copy.deepcopy(found[-1]))
        with torch.no_grad():
            for p in found[-1].parameters():
                p.add_(0.3 * torch.randn_like(p))
    return found


def play(core: str, segment_steps: int, burn_in: int) -> list[Episode]:
    """Both rows' segments in their order, as the learner decodes them."""
    first, second, _ = networks(core)
    stream, episodes = EpisodeStream(fleet(), first, 5, segment_steps), list[Episode]()
    for t in range(STEPS):
        version = int(t >= CHANGED_AT)
        episodes += stream.advance([first, second][version], Provenance(version, 1, STRIDE, 5, burn_in))
    return [decode_episode(encode_episode(e)) for e in sorted(episodes, key=lambda e: e.seed)]


def replayed(network: FactoredRecurrentActorCritic, whole: Episode, start: int, burn_in: int) -> PolicyState:
    """Step through the burn-in of a chunk of the whole episode, from the state that was stored there."""
    first = max(0, start - burn_in) // STRIDE
    state = PolicyState(*(torch.from_numpy(a[:, first : first + 1]) for a in whole.states))
    with torch.no_grad():
        for t in range(first * STRIDE, start):
            obs, blueprints = (torch.from_numpy(a[t : t + 1]) for a in (whole.obs, whole.blueprint_indices))
            state = network.core.step(network.encoder(obs, blueprints).core_input, state).state
    return state


@pytest.mark.parametrize("core", ["lstm", "lstm+memory"])
@pytest.mark.parametrize(("segment_steps", "chunk", "burn_in"), [(8, 4, 4), (5, 6, 4), (3, 4, 8)])
def test_a_segment_starts_from_a_state_that_is_refreshed(
    core: str, segment_steps: int, chunk: int, burn_in: int
) -> None:
    learning = networks(core)[2]
    segments, whole = play(core, segment_steps, burn_in), play(core, STEPS, burn_in)
    batch = make_batch(segments, learning.spaces, chunk, burn_in)
    found, row = replay(batch, learning.advance).state, 0
    assert batch.size == sum(map(len, whole)) == 2 * STEPS  # counted once
    for own in whole:
        for segment in range(0, STEPS, segment_steps):
            for start in range(segment, min(segment + segment_steps, STEPS), chunk):
                for ours, expected in zip(found, replayed(learning, own, start, burn_in), strict=True):
                    assert torch.allclose(ours[:, row], expected[:, 0], atol=2e-6)
                row += 1
    assert row == len(batch.chunk_lengths)


def test_an_update_sees_the_same_in_segments_and_counts_each_step_once() -> None:
    def evaluate(segment_steps: int) -> list[Tensor]:
        network = networks("lstm")[2]
        ppo = toy_ppo(1e-3, network, state_stride=STRIDE, chunk_length=4, burn_in=4, minibatches=2)
        batch = make_batch(play("lstm", segment_steps, 4), network.spaces, 4, 4)
        out = ppo.forward(batch)
        ppo(batch, update=0, version=1)  # which moves the observations' statistics
        seen = [t.float() for name, t in network.named_buffers() if name.startswith("encoder.")]
        return [out.log_probs, out.entropies, out.values, *seen]

    for whole, parts in zip(evaluate(STEPS), evaluate(8), strict=True):
        assert torch.allclose(whole, parts, atol=1e-5)


def test_steps_of_older_weights_before_a_segment_do_not_count_as_an_error() -> None:
    """Where the steps before were acted by other weights, replaying them does not give the state that acted."""
    network = networks("lstm")[1]
    segments = play("lstm", 6, 4)
    for first, compared in ((segments[2], False), (segments[3], True)):
        assert list(first.policy_version) == [1] * 6
        ppo = toy_ppo(1e-3, copy.deepcopy(network), state_stride=STRIDE, chunk_length=4, burn_in=4, update_epochs=1)
        metrics = ppo(make_batch([first], network.spaces, 4, 4), update=0, version=1)
        assert ("ratio_error" in metrics) == compared
        assert metrics.get("ratio_error", 0.0) < 1e-5


def test_a_burn_in_that_does_not_fit_is_refused() -> None:
    segment = play("lstm", 8, 4)[1]
    own = segment.burn_in
    assert own is not None
    for changed, message in (
        (replace(own, obs=own.obs[:, :3]), r"burn_in.obs has shape \(4, 3\)"),
        (replace(own, blueprint_indices=own.blueprint_indices[1:]), "burn_in.blueprint_indices has shape"),
        (replace(own, obs=own.obs * np.float32(np.nan)), "burn_in.obs has NaN"),
        (None, "stored states for 8 steps after 0"),
    ):
        with pytest.raises(InvalidEpisode, match=message):
            encode_episode(replace(segment, burn_in=changed))
