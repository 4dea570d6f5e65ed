"""Burn-in steps are replayed without gradient and not counted; unchanged weights give the stored state."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from actors.policy.cores.sequences import SequenceLayout, Steps
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.state import PolicyState
from actors.types.episode import Episode
from learner.config import LearnerConfig
from learner.ppo import update as update_module
from learner.ppo.batch import Batch, make_batch
from learner.ppo.minibatch import Minibatch, minibatch, whole_batch
from learner.ppo.optimizer import make_optimizer
from learner.ppo.update import PPOUpdate
from tests.support.learning.toy import SPACES, toy_network, toy_seed, toy_wave

LENGTHS = (9, 4, 1, 7, 12)
Advance = Callable[[Steps], PolicyState]


def episodes(stride: int) -> list[Episode]:
    seeds = [toy_seed(n, truncated=i % 2 == 1, salt=i) for i, n in enumerate(LENGTHS)]
    return toy_wave(toy_network(), seeds, state_stride=stride)


def states_before_rows(network: FactoredRecurrentActorCritic, episode: Episode, starts: list[int]) -> list[Tensor]:
    """h before each of `starts`, by stepping the network through the whole episode from its initial state."""
    state = PolicyState(*(torch.from_numpy(t) for t in episode.initial_state.arrays))
    found = []
    with torch.no_grad():
        for t in range(len(episode)):
            if t in starts:
                found.append(state.h[:, 0].clone())
            obs, blueprints = (torch.from_numpy(a[t : t + 1]) for a in (episode.obs, episode.blueprint_indices))
            _, after = network.lstm(network.encoder(obs, blueprints).core_input.unsqueeze(0), (state.h, state.c))
            state = PolicyState(*after, *state[2:])
    return found


def check_states(stride: int, chunk: int, burn_in: int, advance: Callable[..., PolicyState], moved: bool) -> None:
    """The state each row starts from: that of whole episodes under the present weights, where burn-in reaches back to
    the start or weights have not changed."""
    own = episodes(stride)
    network = toy_network()
    if moved:
        with torch.no_grad():
            network.lstm.weight_hh_l0.add_(0.3)
    batch = make_batch(own, SPACES, chunk, burn_in)
    steps = whole_batch(batch, 1.3).load(batch, lambda s: advance(network, s))
    row = 0
    for episode in own:
        starts = list(range(0, len(episode), chunk))
        for start, expected in zip(starts, states_before_rows(network, episode, starts), strict=True):
            assert int(batch.burn_in[row]) == min(burn_in, start)
            assert torch.allclose(steps.state.h[:, row], expected, atol=2e-6)
            row += 1
    assert row == len(batch.chunk_lengths)
    assert not steps.state.h.requires_grad


def replay(network: FactoredRecurrentActorCritic, steps: Steps) -> PolicyState:
    return network.advance(steps)


@pytest.mark.parametrize(("stride", "chunk", "burn_in"), [(1, 3, 2), (2, 4, 2), (3, 3, 6), (2, 2, 8), (1, 1, 1)])
def test_with_unchanged_weights_it_reproduces_the_stored_state(stride: int, chunk: int, burn_in: int) -> None:
    check_states(stride, chunk, burn_in, replay, moved=False)


def test_with_new_weights_a_burn_in_from_the_start_gives_their_own_state() -> None:
    check_states(2, 4, 12, replay, moved=True)
    with pytest.raises(AssertionError):
        check_states(2, 4, 2, replay, moved=True)  # too short: still an older policy's state


def from_zero(network: FactoredRecurrentActorCritic, steps: Steps) -> PolicyState:
    return network.advance(steps._replace(state=PolicyState(*(torch.zeros_like(t) for t in steps.state))))


def not_replayed(network: FactoredRecurrentActorCritic, steps: Steps) -> PolicyState:
    return steps.state


def one_step_short(network: FactoredRecurrentActorCritic, steps: Steps) -> PolicyState:
    return network.advance(steps._replace(obs=steps.obs.roll(1, 0)))


def neighbors(network: FactoredRecurrentActorCritic, steps: Steps) -> PolicyState:
    return PolicyState(*(t.roll(1, 1) for t in network.advance(steps)))


@pytest.mark.parametrize("wrong", [from_zero, not_replayed, one_step_short, neighbors])
def test_a_wrong_replay_is_caught(wrong: Callable[..., PolicyState]) -> None:
    with pytest.raises(AssertionError):
        check_states(2, 4, 2, wrong, moved=False)


def make(**changes: Any) -> PPOUpdate:
    fields: dict[str, Any] = {"state_stride": 1, "gamma": 0.9, "target_kl": 10.0, "chunk_length": 3, "burn_in": 2}
    network = toy_network()
    return PPOUpdate(network, make_optimizer(network, 1e-2, 0.0), LearnerConfig(**(fields | changes)), seed=1)


def gradient_by_step(ppo: PPOUpdate, counted: slice) -> Tensor:
    """`[N]`: size of d loss / d obs of every step, for a loss on some steps of chunks of 3."""
    batch = make_batch(episodes(1), SPACES, 3, burn_in=2)
    batch = batch._replace(obs=batch.obs.clone().requires_grad_())
    out = ppo._evaluate(batch, whole_batch(batch, 1.3))
    (grad,) = torch.autograd.grad(out.values[counted].sum(), batch.obs)
    return grad.abs().sum(-1)


def check_no_gradient(ppo: PPOUpdate) -> None:
    """A loss on the second chunk of the first episode, whose burn-in is the end of the first chunk."""
    grad = gradient_by_step(ppo, slice(3, 6))
    assert bool((grad[3:6] > 0).all())
    assert not bool(grad[:3].any())
    assert not bool(grad[6:].any())


def test_no_gradient_reaches_burn_in_steps() -> None:
    check_no_gradient(make())


def with_gradient(self: PPOUpdate, steps: Steps) -> PolicyState:
    with torch.enable_grad():
        advance = type(self.network).advance.__wrapped__  # type: ignore[attr-defined]
        state: PolicyState = advance(self.network, steps)
    return state


def test_a_burn_in_with_gradient_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PPOUpdate, "_advance", with_gradient)
    with pytest.raises(AssertionError):
        check_no_gradient(make())


def check_not_counted() -> None:
    """Every step of the batch is in the losses of one pass exactly once, whatever is replayed before it."""
    ppo, seen = make(minibatches=2), list[int]()
    batch = make_batch(episodes(1), SPACES, 3, burn_in=2)
    objective = update_module.objective

    def count(out: Any, t: Any, *rest: Any) -> Any:
        seen.append(len(out.values))
        assert len(out.values) == len(t.returns)
        return objective(out, t, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update_module, "objective", count)
        ppo(batch, update=0, version=0)
    assert sum(seen) == batch.size


def test_burn_in_steps_are_not_counted() -> None:
    check_not_counted()


def test_burn_in_steps_that_are_counted_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    burn_in = make_batch(episodes(1), SPACES, 3, burn_in=2).burn_in

    def longer(batch: Batch, chunks: Any) -> Any:
        """Rows that begin with their burn-in."""
        wide = batch.chunk_lengths[chunks] + burn_in[chunks]
        first = batch.first_steps[chunks] - burn_in[chunks]
        source = torch.cat([torch.arange(a, a + n) for a, n in zip(first, wide, strict=True)])
        layout = SequenceLayout(wide, 1.3, torch.device("cpu"))
        return Minibatch(torch.from_numpy(chunks), source, layout, None)

    monkeypatch.setattr(update_module, "minibatch", longer)
    with pytest.raises(AssertionError):
        check_not_counted()


def test_burn_in_is_replayed_once_before_an_update_and_once_to_measure_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ppo, calls, advance = make(minibatches=2), list[int](), PPOUpdate._advance
    batch = make_batch(episodes(1), SPACES, 3, burn_in=2)
    monkeypatch.setattr(PPOUpdate, "_advance", lambda self, steps: (calls.append(1), advance(self, steps))[1])
    ppo(batch, update=0, version=0)
    assert len(calls) == 2


def test_a_minibatch_holds_each_chunk_once_sorted_by_length() -> None:
    batch = make_batch(episodes(1), SPACES, 4, burn_in=2)
    chunks = torch.randperm(len(batch.chunk_lengths), generator=torch.Generator().manual_seed(0)).numpy()
    part = minibatch(batch, chunks, 1.3)
    lengths = batch.chunk_lengths[part.rows.numpy()]
    assert sorted(part.rows.tolist()) == list(range(len(chunks)))
    assert (lengths[:-1] >= lengths[1:]).all()
    assert all(b.first_row is not None and b.first_step is not None for b in part.layout.buckets.buckets)  # no gathers


@pytest.mark.parametrize("chunk", [1, 3, 4, 12])
@pytest.mark.parametrize("burn_in", [0, 2])
def test_the_first_step_of_an_update_meets_ratio_one_at_every_offset(chunk: int, burn_in: int) -> None:
    """What is replayed and cut is what was acted: the shipped log-probs come back from any chunk."""
    metrics = make(update_epochs=1)(make_batch(episodes(1), SPACES, chunk, burn_in), 0, 0)
    assert metrics["ratio_error"] < 1e-5
    assert metrics["lag_kl"] < 1e-9


def test_segments_continue_from_the_state_they_carry() -> None:
    """An episode shipped in two parts: the second starts in mid-episode, from a state that is not zero."""
    network = toy_network()
    (episode,) = toy_wave(network, [toy_seed(9, truncated=True)], state_stride=1)
    cut_at = 4

    def part(a: int, b: int) -> Episode:
        own = copy.copy(episode)
        for name in ("policy_version", "obs", "blueprint_indices", "actions", "log_probs", "masks", "values"):
            object.__setattr__(own, name, getattr(episode, name)[a:b])
        for name in ("baseline_values", "rewards"):
            object.__setattr__(own, name, getattr(episode, name)[a:b])
        states = type(episode.states)(*(t[:, a:b] for t in episode.states.arrays))
        object.__setattr__(own, "states", states)
        object.__setattr__(own, "initial_state", type(states)(*(t[:, :1] for t in states.arrays)))
        return own

    segments = [part(0, cut_at), part(cut_at, 9)]
    for chunk_length, burn_in in ((None, 0), (2, 2)):
        batch = make_batch(segments, SPACES, chunk_length, burn_in)
        assert make()(batch, update=0, version=0)["ratio_error"] < 1e-5
    batch = make_batch(segments, SPACES)
    lost = batch._replace(state=PolicyState(*(torch.zeros_like(t) for t in batch.state)))
    assert make()(lost, update=0, version=0)["ratio_error"] > 1e-3
