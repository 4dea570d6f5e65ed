"""A head that the op makes irrelevant gets exactly no gradient, and the rest get the exact one."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from actors.policy.cores.sequences import Steps
from actors.policy.network import Evaluation, FactoredRecurrentActorCritic
from learner.ppo.gae import head_advantages
from learner.ppo.objective import clipped_surrogate, entropy_bonus, k3
from tests.support.learning.toy import CORES, SPACES, SPEC, single_steps, toy_network

JOINT = [
    a for a in itertools.product(*map(range, SPEC.sizes)) if all(SPEC.relevance[a[0]][k] or a[k] == 0 for k in range(4))
]
Loss = Callable[[Evaluation, Tensor], Tensor]


def one_step(
    actions: list[tuple[int, ...]], states: int = 1, network: FactoredRecurrentActorCritic | None = None
) -> Steps:
    """One step of every action in each of `states` states, everything legal; episodes of one step."""
    noise, count = torch.Generator().manual_seed(7), len(actions)
    obs = torch.randn(states, SPACES.obs_size, generator=noise).repeat_interleave(count, 0)
    blueprints = torch.randint(-1, 4, (states, SPACES.slots), generator=noise).repeat_interleave(count, 0)
    masks = torch.ones(states * count, SPEC.flat_size, dtype=torch.bool)
    state = (network or toy_network()).initial_state(states * count)
    return single_steps(obs, blueprints, torch.tensor(actions).repeat(states, 1), masks, state)


def policy_loss(ratio: Tensor, a: Tensor, counted: Tensor, clip: float, denominator: float) -> Tensor:
    return clipped_surrogate(ratio, a, counted, clip, denominator).sum()


def policy_term(out: Evaluation, counted: Tensor) -> Tensor:
    ratio = (out.log_probs - out.log_probs.detach() + 0.05).exp()
    advantages = torch.linspace(-1.0, 2.0, len(ratio))[:, None].expand_as(ratio)
    return policy_loss(ratio, advantages, counted, 0.2, len(ratio))


def entropy_term(out: Evaluation, counted: Tensor) -> Tensor:
    return entropy_bonus(out.entropies, counted, 1.0)


def kl_term(out: Evaluation, counted: Tensor) -> Tensor:
    return k3((out.log_probs - out.log_probs.detach() - 0.1).sum(-1), counted.any(-1))


TERMS = [policy_term, entropy_term, kl_term]


def check_irrelevant_heads_are_still(network: FactoredRecurrentActorCritic, term: Loss, op: int) -> None:
    """All steps chose `op`, everything is legal: the causal table alone stands between a head and a gradient."""
    steps = one_step([a for a in JOINT if a[0] == op], states=3, network=network)
    out = network.evaluate_steps(steps)
    term(out, network.relevance[steps.actions[:, 0]]).backward()  # type: ignore[no-untyped-call]
    modules = {"op": network.heads.op, "slot": network.heads.pointer, **network.heads.rest}
    for head, relevant in zip(SPEC.names, SPEC.relevance[op], strict=True):
        grads = [p.grad for p in modules[head].parameters() if p.grad is not None]
        assert any(bool((g != 0).any()) for g in grads) == relevant, f"{head} under {SPEC.heads[0].choices[op]}"


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("op", range(SPEC.num_ops))
@pytest.mark.parametrize("core", CORES)
def test_an_irrelevant_head_has_exactly_no_gradient_and_a_relevant_one_has_some(term: Loss, op: int, core: str) -> None:
    check_irrelevant_heads_are_still(toy_network(core=core), term, op)


@pytest.mark.parametrize("term", TERMS)
def test_a_causal_table_that_is_all_true_is_caught(term: Loss) -> None:
    network = toy_network(causal_masks=False)
    network.relevance = torch.ones_like(network.relevance)
    with pytest.raises(AssertionError):
        check_irrelevant_heads_are_still(network, term, op=0)


def rewards(states: int) -> Tensor:
    """Of every joint action in every state; far apart, so that wrong weights show."""
    rng = np.random.default_rng(3)
    return torch.from_numpy(rng.normal(0.0, 2.0, (states, len(JOINT))) ** 3).float()


def exact_gradient(network: FactoredRecurrentActorCritic, states: int) -> list[Tensor]:
    """Of sum over states and joint actions of pi * R, by differentiating the enumerated expectation itself."""
    probability = network.evaluate_steps(one_step(JOINT, states, network)).log_probs.sum(-1).exp().view(states, -1)
    assert torch.allclose(probability.sum(1), torch.ones(states), atol=1e-5)
    return gradient(network, (probability * rewards(states)).sum())


def gradient(network: FactoredRecurrentActorCritic, loss: Tensor) -> list[Tensor]:
    parameters = [*network.encoder.parameters(), *network.core.parameters(), *network.heads.parameters()]
    return list(torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True))


def no_baseline(states: int, network: FactoredRecurrentActorCritic) -> tuple[Tensor, Tensor]:
    return torch.zeros(states * len(JOINT)), torch.zeros(states * len(JOINT))


def op_values(states: int, network: FactoredRecurrentActorCritic) -> tuple[Tensor, Tensor]:
    """Of every joint action in every state: Q of its op, and V, the expectation of Q over ops; any numbers would do."""
    q = torch.from_numpy(np.random.default_rng(8).normal(0.0, 3.0, (states, SPEC.num_ops))).float()
    with torch.no_grad():
        probability = network.evaluate_steps(one_step(JOINT, states, network)).log_probs.sum(-1).exp().view(states, -1)
    own = q[:, torch.tensor([a[0] for a in JOINT])]
    return own.flatten(), (probability * own).sum(1, keepdim=True).expand_as(own).flatten()


def check_estimator(
    estimator: Callable[..., Tensor],
    baseline: Callable[..., tuple[Tensor, Tensor]] = no_baseline,
    core: str = "lstm",
    behaviour_seed: int | None = None,
) -> None:
    """Ratio 1, no normalization, no entropy: the mean over all joint actions, weighted by their probability.

    The op head's advantage is G - V, the others' G - Q(op): together the exact gradient. With `behaviour_seed` another
    policy acted, and the decoupled weight brings its actions back to the present one's. The surrogate is linear in the
    advantage, so weights may stand in it.
    """
    states = 4
    network = toy_network(probability_floor=0.0, core=core)
    steps = one_step(JOINT, states, network)
    out = network.evaluate_steps(steps)
    counted = network.relevance[steps.actions[:, 0]]
    q, v = baseline(states, network)
    head = head_advantages(rewards(states).flatten() - q, q, v, len(SPEC.heads))
    acted = out.log_probs.detach()
    if behaviour_seed is not None:
        with torch.no_grad():
            acted = toy_network(behaviour_seed, probability_floor=0.0, core=core).evaluate_steps(steps).log_probs
    weight = (out.log_probs.detach() - acted).sum(-1).exp()
    ratio = (out.log_probs - out.log_probs.detach()).exp()
    weighted = head * (weight * acted.sum(-1).exp())[:, None]
    estimate = gradient(network, -estimator(ratio, weighted, counted, 0.2, 1.0))
    exact = exact_gradient(network, states)
    scale = max(float(g.abs().max()) for g in exact)
    assert scale > 1e-2
    for a, b in zip(estimate, exact, strict=True):
        assert torch.allclose(a, b, atol=5e-5 * scale)


@pytest.mark.parametrize("baseline", [no_baseline, op_values])
@pytest.mark.parametrize("core", CORES)
def test_the_estimator_averages_to_the_exact_policy_gradient(
    baseline: Callable[..., tuple[Tensor, Tensor]], core: str
) -> None:
    check_estimator(policy_loss, baseline, core)


def test_the_decoupled_weight_corrects_for_the_policy_that_acted() -> None:
    check_estimator(policy_loss, op_values, behaviour_seed=1)


def mean_over_each_head(ratio: Tensor, a: Tensor, counted: Tensor, clip: float, denominator: float) -> Tensor:
    """Each head divided by its own active steps: re-weights the heads in the shared trunk."""
    terms = (ratio * a).masked_fill(~counted, 0.0)
    return -(terms.sum(0) * (len(a) / counted.sum(0))).sum() / denominator


def test_a_biased_estimator_is_caught() -> None:
    with pytest.raises(AssertionError):
        check_estimator(mean_over_each_head)
