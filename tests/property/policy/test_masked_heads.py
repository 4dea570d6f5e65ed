"""The factored, masked heads define one distribution over joint actions, checked by enumeration and by sampling."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from actors.policy import distribution
from actors.policy import network as network_module
from actors.policy.acting.policy import ActingPolicy
from actors.policy.cores.sequences import Steps
from actors.policy.distribution import choose, masked_log_probs
from actors.policy.network import EmptyMask, Evaluation, FactoredRecurrentActorCritic
from actors.types.actions import ActionMasks, forced_steps
from tests.support.examples import examples
from tests.support.learning.toy import POLICIES, SPACES, SPEC, random_masks, single_steps, toy_network
from tests.support.learning.without_kernels import without_kernels

FLOOR = 0.02
JOINT = np.array(list(itertools.product(*map(range, SPEC.sizes))), dtype=np.int64)  # [36, H]
STATES = [random_masks(np.random.default_rng(seed)) for seed in range(12)]


def canonical(action: NDArray[np.int64]) -> bool:
    """Return whether irrelevant heads have their first choice, so that each joint action is counted once."""
    return all(SPEC.relevance[action[0]][k] or action[k] == 0 for k in range(len(SPEC.heads)))


def legal_choices(masks: ActionMasks, action: NDArray[np.int64]) -> list[list[int]]:
    """Return per head the indices of legal choices given the earlier ones, from the definition."""
    op, slot = int(action[0]), int(action[1])
    choices = [[o for o in range(SPEC.num_ops) if masks.op[o]]]
    choices.append([s for s in range(SPEC.num_slots) if masks.slot[op, s]] if SPEC.relevance[op][1] else [0])
    start = 0
    for k in range(2, len(SPEC.heads)):
        own = [n for n in range(SPEC.sizes[k]) if masks.rest[op, slot, start + n]]
        choices.append(own if SPEC.relevance[op][k] else [0])
        start += SPEC.sizes[k]
    return choices


def is_legal(masks: ActionMasks, action: NDArray[np.int64]) -> bool:
    return canonical(action) and all(a in c for a, c in zip(action, legal_choices(masks, action), strict=True))


def evaluated(network: FactoredRecurrentActorCritic, masks: ActionMasks, seed: int) -> tuple[Evaluation, Steps]:
    """Evaluate every joint action in the same state, each as a row."""
    count = len(JOINT)
    rng = np.random.default_rng(seed)
    obs = torch.from_numpy(np.tile(rng.standard_normal(SPACES.obs_size).astype(np.float32), (count, 1)))
    blueprints = torch.from_numpy(np.tile(rng.integers(-1, 4, SPACES.slots), (count, 1)))
    many = ActionMasks(*(np.broadcast_to(m, (count, *m.shape)) for m in masks))
    in_force, state = torch.from_numpy(many.in_force(SPEC, JOINT)), network.initial_state(count)
    steps = single_steps(obs, blueprints, torch.from_numpy(JOINT), in_force, state)
    with torch.no_grad():
        return network.evaluate_steps(steps), steps


def joint_by_hand(network: FactoredRecurrentActorCritic, masks: ActionMasks, steps: Steps) -> list[float]:
    """Compute each joint action's probability from logits in float64: exponentials over legal choices, then floors."""
    with torch.no_grad():
        encoded = network.encoder(steps.obs, steps.blueprint_indices)
        core = network.norm(network.core.step(encoded.core_input, steps.state).output)
        op, slot = steps.actions[:, 0], steps.actions[:, 1]
        logits = [network.heads.op(core), network.heads.slot_logits(core, encoded.slots, op)]
        logits += network.heads.rest_logits(core, encoded.slots, op, slot)
    probabilities = []
    for row, action in enumerate(JOINT):
        total = 1.0 if is_legal(masks, action) else 0.0
        for k, legal in enumerate(legal_choices(masks, action)) if total else []:
            weight = {n: float(np.exp(np.float64(logits[k][row, n]))) for n in legal}
            share = min(FLOOR, 0.5 / len(legal))
            total *= (1 - len(legal) * share) * weight[action[k]] / sum(weight.values()) + share
        probabilities.append(total)
    return probabilities


def check_joint(**options: Any) -> None:
    network = toy_network(probability_floor=FLOOR, **options)
    for seed, masks in enumerate(STATES):
        out, steps = evaluated(network, masks, seed)
        probability = out.log_probs.double().sum(-1).exp()
        legal = torch.tensor([is_legal(masks, a) for a in JOINT])
        once = torch.tensor([canonical(a) for a in JOINT])
        assert bool((probability[once & ~legal] == 0).all())
        assert abs(float(probability[legal].sum()) - 1.0) < 1e-5
        expected = torch.tensor(joint_by_hand(network, masks, steps))
        assert torch.allclose(probability[legal], expected[legal].double(), rtol=1e-4, atol=1e-7)
        for row in legal.nonzero().flatten().tolist():
            for k, choices in enumerate(legal_choices(masks, JOINT[row])):
                log_prob, entropy = float(out.log_probs[row, k]), float(out.entropies[row, k])
                assert log_prob >= np.log(min(FLOOR, 0.5 / len(choices))) - 1e-5
                assert -1e-6 <= entropy <= 1.0 + 1e-6
                assert len(choices) > 1 or (entropy == 0.0 and abs(log_prob) < 1e-6)


@pytest.mark.parametrize("options", [*POLICIES, {"heads": "independent"}, {"encoder": "flat"}])
def test_probabilities_of_legal_joint_actions_sum_to_one_and_match_enumeration(options: dict[str, str]) -> None:
    check_joint(**options)
    with without_kernels():
        check_joint(**options)


def test_wrong_masking_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def masked(logits: Tensor, mask: Tensor, floor: float = 0.0, mass: float = 0.5) -> Tensor:
        return masked_log_probs(logits - 10.0 * ~mask, torch.ones_like(mask), floor)

    monkeypatch.setattr(network_module, "masked_log_probs", masked)
    monkeypatch.setattr(distribution, "masked_log_probs", masked)
    with pytest.raises(AssertionError), without_kernels():
        check_joint()


def test_masks_in_force_and_forced_steps_match_enumeration() -> None:
    kinds = set()
    for masks in STATES:
        legal = [a for a in JOINT if is_legal(masks, a)]
        for action in legal:
            in_force = masks.in_force(SPEC, action[None][0])
            expected = [
                n in c for size, c in zip(SPEC.sizes, legal_choices(masks, action), strict=True) for n in range(size)
            ]
            assert in_force.tolist() == expected
            forced = bool(forced_steps(SPEC, action, in_force))
            assert forced == (len(legal) == 1)
            kinds.add(forced)
    assert kinds == {True, False}


@pytest.mark.parametrize("empty", ["op", "slot", "rest"])
def test_a_relevant_head_without_a_legal_choice_raises(empty: str) -> None:
    """The same empty mask is accepted if the head is irrelevant."""
    network, state = toy_network(), toy_network().initial_state(1)
    full = {"op": np.ones((1, 3), bool), "slot": np.ones((1, 3, 2), bool), "rest": np.ones((1, 3, 2, 5), bool)}
    obs, blueprints, noise = np.zeros((1, 10), np.float32), np.zeros((1, 2), np.int64), np.full((1, 4), 0.5)
    full["op"][:] = [[False, True, False]]  # PLANT: every head is relevant
    full[empty][:] = False
    for acting in (network, ActingPolicy(network)):
        with pytest.raises(EmptyMask):
            acting.act(obs, blueprints, ActionMasks(**full), state, noise)
    if empty != "op":
        full["op"][:] = [[True, False, False]]  # WAIT: no other head is relevant
        decision, _ = network.act(obs, blueprints, ActionMasks(**full), state, noise)
        assert decision.actions.tolist() == [[0, 0, 0, 0]]


ALMOST_ONE = float(np.nextafter(1.0, 0.0))
cases = st.lists(st.tuples(st.floats(-8, 8, width=32), st.booleans()), min_size=1, max_size=6).filter(
    lambda choices: any(legal for _, legal in choices)
)


@settings(max_examples=examples(40), deadline=None)
@given(cases)
def test_shares_of_the_noise_equal_the_probabilities(choices: list[tuple[float, bool]]) -> None:
    """Over a fine grid of noise, in order: the inverse of the cumulative distribution is monotonic."""
    legal = torch.tensor([legal for _, legal in choices])
    table = masked_log_probs(torch.tensor([x for x, _ in choices]), legal)
    count = 4000
    noise = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    picked = choose(table.expand(count, -1), noise, False)
    frequency = torch.bincount(picked, minlength=len(choices)) / count
    assert bool((frequency[~legal] == 0).all())
    assert torch.allclose(frequency, table.exp(), atol=1.5 / count)
    assert bool((picked.diff() >= 0).all())


@settings(max_examples=examples(60), deadline=None)
@given(cases, st.sampled_from([0.0, 5e-324, 0.5, ALMOST_ONE]))
def test_no_noise_selects_an_illegal_choice(choices: list[tuple[float, bool]], noise: float) -> None:
    legal = torch.tensor([legal for _, legal in choices])
    table = masked_log_probs(torch.tensor([x for x, _ in choices]), legal)
    for greedy in (False, True):
        assert bool(legal[int(choose(table, torch.tensor(noise, dtype=torch.float64), greedy))])


def test_frequencies_of_joint_actions_match_their_log_probs() -> None:
    network, count = toy_network(), 20_000
    rng = np.random.default_rng(0)
    masks = ActionMasks(*(np.ones((count, *shape), dtype=np.bool_) for shape in ((3,), (3, 2), (3, 2, 5))))
    masks.rest[:, 1, 0, 1] = masks.rest[:, 2, 1, 4] = False  # kind b where PLANT has slot 0; fast where CUT has slot 1
    obs = np.tile(rng.standard_normal(SPACES.obs_size).astype(np.float32), (count, 1))
    blueprints = np.tile(rng.integers(-1, 4, SPACES.slots), (count, 1))
    decision, _ = network.act(obs, blueprints, masks, network.initial_state(count), rng.random((count, 4)))
    actions, where, times = np.unique(decision.actions, axis=0, return_index=True, return_counts=True)
    probability = np.exp(decision.log_probs[where].sum(1, dtype=np.float64))
    assert len(actions) == 1 + (2 + 3) * 2 + (2 + 1)
    expected = probability * count
    assert abs(expected.sum() - count) < 0.02 * count  # actions that were not sampled have little probability
    assert ((times - expected) ** 2 / expected)[expected > 5].sum() < 3 * len(actions)  # chi-square, far in the tail
    for action, row in zip(actions, where, strict=True):
        irrelevant = ~SPEC.relevance_table[action[0]]
        assert (action[irrelevant] == 0).all()
        assert (decision.log_probs[row][irrelevant] == 0).all()
