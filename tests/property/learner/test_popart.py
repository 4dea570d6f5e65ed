"""Changing the value scale changes no value, and takes no parameter out of the optimizer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.normalizer import ValueNormalizer
from learner.network import first_network
from learner.ppo.batch import make_batch
from tests.support.learning.batches import LENGTHS, evaluate_batch, targets_of, toy_ppo
from tests.support.learning.toy import CRITICS, SPACES, toy_network, toy_seed, toy_wave

BATCHES = [(5.0, 2.0), (-300.0, 40.0), (1e4, 1e-3), (0.0, 1e5)]  # mean and deviation of the returns


def returns(mean: float, deviation: float) -> Tensor:
    return mean + deviation * torch.randn(64, dtype=torch.float64)


@pytest.mark.parametrize("critic", CRITICS)
def test_denormalized_outputs_survive_a_statistics_update(critic: str) -> None:
    """Of every row of the output layer: V's one, or those of Q(s, op)."""
    torch.manual_seed(0)
    network = toy_network(critic=critic).double()
    scale, output = network.value_normalizer, network.value_output
    core = torch.randn(30, network.config.hidden_size, dtype=torch.float64)
    for mean, deviation in BATCHES:
        with torch.no_grad():
            before, old = scale.denormalize(network.critic(core)), float(scale.std)
            kept = output.weight.clone()
            scale.update(returns(mean, deviation), output)
            after = scale.denormalize(network.critic(core))
        assert abs(float(scale.std) / old - 1.0) > 1e-3  # the scale did move
        assert torch.allclose(before, after, rtol=1e-12, atol=1e-12 * float(scale.std + scale.mean.abs()))
        assert not torch.allclose(output.weight, kept)  # left as it was, it would give other values


def test_parameters_are_still_the_optimizers_own() -> None:
    """The trap is a new Parameter, which the optimizer never sees."""
    network = toy_network()
    before = dict(network.named_parameters())
    network.value_normalizer.update(returns(50.0, 9.0), network.value_output)
    assert all(network.get_parameter(name) is p for name, p in before.items())


def test_statistics_are_those_of_the_returns() -> None:
    """An average over all batches at first, an exponential one later; never below a share of the returns' size."""
    torch.manual_seed(1)
    scale, output = ValueNormalizer(popart=True), nn.Linear(3, 1)
    means, squares = 0.0, 0.0
    for n in range(25):
        batch = returns(2.0 * n, 3.0)
        step = max(0.1, 1.0 / (n + 1))
        means += step * (float(batch.mean()) - means)
        squares += step * (float(batch.square().mean()) - squares)
        scale.update(batch, output)
        assert float(scale.mean) == pytest.approx(means, rel=1e-12)
        assert float(scale.std) == pytest.approx((squares - means**2) ** 0.5, rel=1e-9)
    equal = ValueNormalizer(popart=True)
    equal.update(torch.full((9,), 4.0), nn.Linear(3, 1))
    assert float(equal.std) == pytest.approx(0.05 * 4.0)  # a task that is solved: noise is not blown up to 1
    for size in (1e-4, 1.0, 1e4):  # of rewards, which nobody promised to be about 1
        small = ValueNormalizer(popart=True)
        small.update(torch.tensor([size, -size, size, -size]), nn.Linear(3, 1))
        assert float(small.std) == pytest.approx(size)
    kept = [t.clone() for t in scale.state_dict().values()]
    scale.update(torch.zeros(0), output)
    assert all(torch.equal(a, b) for a, b in zip(kept, scale.state_dict().values(), strict=True))


def test_without_popart_the_mean_stays_zero_and_the_layer_untouched() -> None:
    network = toy_network(popart=False)
    scale, output = network.value_normalizer, network.value_output
    before = [p.clone() for p in output.parameters()]
    scale.update(returns(500.0, 9.0), output)
    assert float(scale.mean) == 0.0 < 1.0 < float(scale.std)
    assert all(map(torch.equal, before, output.parameters()))
    values = torch.randn(5)
    assert torch.allclose(scale.normalize(scale.denormalize(values)), values, atol=1e-6)


def untrained(**changes: object) -> FactoredRecurrentActorCritic:
    """Unlike `toy_network`, with a value scale that was never fitted."""
    torch.manual_seed(4)
    return FactoredRecurrentActorCritic(SPACES, toy_network(**changes).config)


@pytest.mark.parametrize("critic", CRITICS)
def test_the_first_update_does_not_preserve_an_untrained_critic(critic: str) -> None:
    """It begins at the mean of the returns; preserved, it would be 20 deviations below it."""
    network = untrained(critic=critic)
    scale, core = network.value_normalizer, torch.randn(30, network.config.hidden_size)
    with torch.no_grad():
        first = returns(500.0, 5.0)
        scale.update(first, network.value_output)
        assert torch.allclose(scale.denormalize(network.critic(core)), first.mean().float(), rtol=1e-6)
        network.value_output.weight.normal_()  # trained, from here on
        before = scale.denormalize(network.critic(core))
        scale.update(returns(800.0, 9.0), network.value_output)
        assert torch.allclose(scale.denormalize(network.critic(core)), before, rtol=1e-4)


def trained(seeds: list[int], updates: int, scale: float = 1.0, offset: float = 0.0) -> dict[str, Tensor]:
    """The weights of a new run after some updates on episodes whose rewards are `scale` times theirs plus `offset`."""
    network = first_network(toy_network().config, SPACES, 0, None, None)
    learn = toy_ppo(network=network, gamma=0.95)
    for update in range(updates):
        batch = make_batch(toy_wave(network, seeds), SPACES)
        learn(batch._replace(rewards=batch.rewards * scale + offset), update, update)
    return {name: p.detach().clone() for name, p in network.named_parameters()}


def test_a_constant_that_every_return_has_does_not_slow_the_critic_down() -> None:
    """Advantages and errors are relative to the mean, so that training is the same but for rounding."""
    seeds = [toy_seed(1, truncated=False, salt=k) for k in range(32)]
    torch.testing.assert_close(trained(seeds, 5, offset=400.0), trained(seeds, 5), rtol=0, atol=2e-3)


def test_learning_does_not_depend_on_the_scale_of_rewards() -> None:
    """Multiplied by a power of two, so that only the additions of constants could change a bit."""
    seeds = [toy_seed(n, truncated=i % 2 == 0, salt=i) for i, n in enumerate(LENGTHS)]
    usual, tiny, first = trained(seeds, 3), trained(seeds, 3, scale=2.0**-12), trained(seeds, 0)
    assert not all(torch.equal(usual[name], first[name]) for name in first)
    torch.testing.assert_close(tiny, usual, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("popart", [True, False])
def test_old_values_are_those_that_the_network_gives_after_the_scale_has_moved(popart: bool) -> None:
    """At the first update too, and without PopArt: else the clip of the value loss would cut gradients at once."""
    network = untrained(popart=popart)
    episodes = toy_wave(network, [toy_seed(n, truncated=False, salt=n) for n in (5, 3, 4)])
    ppo = toy_ppo(1e-3, network)
    for _ in range(3):
        batch = make_batch(episodes, SPACES)
        targets = targets_of(network, batch, ppo.config)
        with torch.no_grad():
            assert torch.allclose(evaluate_batch(network, batch).values, targets.proximal_values, atol=1e-5)
