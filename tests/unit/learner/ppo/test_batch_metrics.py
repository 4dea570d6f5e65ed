"""What an update reports of its batch: the size of the recurrent state, and what was chosen in each head."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from actors.metrics.registry import lookup
from actors.policy.network import FactoredRecurrentActorCritic
from actors.types.actions import independent_spec
from actors.types.episode import Episode
from learner.config import LearnerConfig
from learner.ppo.batch import make_batch
from learner.ppo.metrics import MOST_BARS, MOST_HISTOGRAMS, choice_shares, ranges, step_metrics
from learner.ppo.targets import Targets
from tests.support.learning.batches import toy_ppo
from tests.support.learning.toy import SPACES, SPEC, toy_network, toy_seed, toy_wave


def played() -> list[Episode]:
    return toy_wave(toy_network(), [toy_seed(n, truncated=False, salt=n) for n in (5, 9, 2, 7)])


def metrics_of(network: FactoredRecurrentActorCritic) -> dict[str, float]:
    ppo = toy_ppo(1e-3, network)
    return ppo(make_batch(played(), SPACES), update=0, version=0)


@torch.no_grad()
def state_norm(network: FactoredRecurrentActorCritic) -> float:
    """Mean norm of h of the last layer after every step, one step after the other."""
    norms = []
    for episode in played():
        state = network.initial_state(1)
        for row in zip(torch.from_numpy(episode.obs), torch.from_numpy(episode.blueprint_indices), strict=True):
            state = network.core.step(network.encoder(*(t[None] for t in row)).core_input, state).state
            norms.append(float(state.h[-1].norm()))
    return float(np.mean(norms))


@pytest.mark.parametrize("gain", [0.1, 1.0, 20.0])
def test_hidden_norm_is_that_of_the_state(gain: float) -> None:
    """Not of what LayerNorm makes of it, which is the square root of its size whatever the state is."""
    network = toy_network()
    with torch.no_grad():
        for p in network.core.lstm.parameters():
            p.mul_(gain)
    expected = state_norm(network)
    assert metrics_of(network)["hidden_norm"] == pytest.approx(expected, rel=1e-4)
    assert expected < 0.6 * network.config.hidden_size**0.5 or gain > 1
    assert "hidden_norm" not in metrics_of(toy_network(core="feedforward"))


@pytest.mark.parametrize("popart", [True, False])
def test_values_are_reported_in_units_of_the_return_with_the_scale_of_the_critic(popart: bool) -> None:
    network = toy_network(popart=popart)
    ppo = toy_ppo(1e-3, network)
    batch = make_batch(played(), SPACES)
    for update in range(2):
        scale = network.value_normalizer
        expected = float(scale.denormalize(ppo.forward(batch).values).mean())
        metrics = ppo(batch, update, version=0)
        assert metrics["value_estimate"] == pytest.approx(expected, rel=1e-5)
        assert (metrics["value_mean"], metrics["value_scale"]) == (float(scale.mean), float(scale.std))
    assert (metrics["value_mean"] != 0.0) == popart
    assert expected != 0.0


def test_every_head_has_a_histogram_of_its_choices() -> None:
    """Over the steps at which it mattered, counted by hand."""
    metrics = metrics_of(toy_network())
    for k, head in enumerate(SPEC.heads):
        chosen = Counter(int(a[k]) for e in played() for a in e.actions if SPEC.relevance[int(a[0])][k])
        family = "op" if k == 0 else f"choice/{head.name}"
        for index, choice in enumerate(head.choices):
            share = chosen[index] / sum(chosen.values())
            assert metrics[f"{family}/{choice}"] == pytest.approx(share)
        lookup(f"{family}/{head.choices[0]}")


def test_a_head_with_many_choices_is_reported_in_ranges() -> None:
    size = 5 * MOST_BARS - 3
    actions = torch.tensor([0, 4, 5, size - 1])[:, None].expand(4, 2)
    shares = choice_shares(independent_spec((size, size)), actions, torch.ones(4, 2, dtype=torch.bool))
    assert len(shares) == 2 * MOST_BARS
    reported = {name: float(share) for name, share in shares.items() if share > 0}
    assert reported == {
        f"{family}/{name}": share
        for family in ("op", "choice/action1")
        for name, share in (("0..4", 0.5), ("5..9", 0.25), (f"{size - 2}..{size - 1}", 0.25))
    }


def test_metrics_are_bounded_for_any_action_space() -> None:
    """10,000 choices had 10,000 metrics, and 200 heads of 3 choices had 1,200."""
    config, heads = LearnerConfig(), 200
    for sizes in ((10_000,), (3,) * heads, (50,) * heads):
        spec = independent_spec(sizes)
        shape = (6, len(sizes))
        chosen = torch.arange(6)[:, None].expand(shape) % 3
        counted = torch.ones(shape, dtype=torch.bool)
        t = Targets(*[torch.zeros(shape)] * 5, counted, counted[:, 0])
        log_probs = torch.arange(len(sizes)).expand(shape) * 0.01
        metrics = choice_shares(spec, chosen, counted)
        metrics |= step_metrics(log_probs, t, counted[:, 0], config, torch.tensor(6.0), spec.names)
        assert len(metrics) < 2 + (MOST_HISTOGRAMS + 3) * MOST_BARS
    name, part = ranges(spec.names)[-1]
    moved = log_probs[0, part]
    assert float(metrics[f"kl/{name}"]) == pytest.approx(float((moved.exp() - 1 - moved).mean()))
    assert name == "action196..action199"
