"""Burn-in steps are replayed without gradient and not counted; unchanged weights give the stored state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.state import PolicyState
from actors.types.episode import Episode
from learner.ppo.batch import make_batch
from learner.ppo.minibatch import replay
from tests.support.learning.toy import SPACES, toy_network, toy_seed, toy_wave

LENGTHS = (9, 4, 1, 7, 12)


def states_before_rows(network: FactoredRecurrentActorCritic, episode: Episode, starts: list[int]) -> list[Tensor]:
    """h before each of `starts`, by stepping the network through the whole episode from its initial state."""
    state = PolicyState(*(torch.from_numpy(t) for t in episode.initial_state))
    found = []
    with torch.no_grad():
        for t in range(len(episode)):
            if t in starts:
                found.append(state.h[:, 0].clone())
            obs, blueprints = (torch.from_numpy(a[t : t + 1]) for a in (episode.obs, episode.blueprint_indices))
            _, after = network.core.lstm(network.encoder(obs, blueprints).core_input.unsqueeze(0), (state.h, state.c))
            state = PolicyState(*after, *state[2:])
    return found


def check_states(stride: int, chunk: int, burn_in: int, moved: bool) -> None:
    """The state each row starts from: that of whole episodes under the present weights, where burn-in reaches back to
    the start or weights have not changed."""
    network = toy_network()
    own = toy_wave(network, [toy_seed(n, i % 2 == 1, i) for i, n in enumerate(LENGTHS)], state_stride=stride)
    if moved:
        with torch.no_grad():
            network.core.lstm.weight_hh_l0.add_(0.3)
    batch = make_batch(own, SPACES, chunk, burn_in)
    state = replay(batch, network.advance).state
    row = 0
    for episode in own:
        starts = list(range(0, len(episode), chunk))
        for start, expected in zip(starts, states_before_rows(network, episode, starts), strict=True):
            assert int(batch.burn_in[row]) == min(burn_in, start)
            assert torch.allclose(state.h[:, row], expected, atol=2e-6)
            row += 1
    assert row == len(batch.chunk_lengths)
    assert not state.h.requires_grad


@pytest.mark.parametrize(("stride", "chunk", "burn_in"), [(1, 3, 2), (3, 3, 6), (2, 2, 8)])
def test_with_unchanged_weights_it_reproduces_the_stored_state(stride: int, chunk: int, burn_in: int) -> None:
    check_states(stride, chunk, burn_in, moved=False)


def test_with_new_weights_a_burn_in_from_the_start_gives_their_own_state() -> None:
    check_states(2, 4, 12, moved=True)
    with pytest.raises(AssertionError):
        check_states(2, 4, 2, moved=True)  # too short: still an older policy's state
