"""Advantages equal an O(T^2) sum in float64, episode by episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from learner.ppo.gae import Advantages, gae, normalize
from tests.support.examples import examples


class Case(NamedTuple):
    rewards: Tensor
    values: Tensor
    valid: Tensor
    terminated: Tensor
    bootstrap_value: Tensor
    gamma: float
    gae_lambda: float


def make_case(lengths: list[int], ends: list[bool], gamma: float, lam: float, seed: int = 0) -> Case:
    """Random rewards and values, NaN in padding and in the bootstrap of terminated episodes."""
    noise = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths))
    rewards, values = (torch.randn(shape, generator=noise, dtype=torch.float64) * 5 for _ in range(2))
    valid = torch.arange(shape[1])[None, :] < torch.tensor(lengths)[:, None]
    terminated = torch.tensor(ends)
    bootstrap = torch.randn(shape[0], generator=noise, dtype=torch.float64).masked_fill(terminated, torch.nan)
    rewards, values = (t.masked_fill(~valid, torch.nan) for t in (rewards, values))
    return Case(rewards, values, valid, terminated, bootstrap, gamma, lam)


def by_sum(case: Case) -> tuple[list[list[float]], list[list[float]]]:
    """A_t = sum over k of (gamma lambda)^k delta_{t+k}, each from its own loop over one episode alone."""
    advantages, returns = [], []
    for row in range(case.rewards.shape[0]):
        steps = int(case.valid[row].sum())
        r, v = case.rewards[row, :steps].tolist(), case.values[row, :steps].tolist()
        after = 0.0 if case.terminated[row] else float(case.bootstrap_value[row])
        own = []
        for t in range(steps):
            total = 0.0
            for k in range(steps - t):
                following = v[t + k + 1] if t + k + 1 < steps else after
                total += (case.gamma * case.gae_lambda) ** k * (r[t + k] + case.gamma * following - v[t + k])
            own.append(total)
        advantages.append(own)
        returns.append([a + b for a, b in zip(own, v, strict=True)])
    return advantages, returns


def check(estimate: Callable[[Case], Advantages], case: Case, tolerance: float) -> None:
    out = estimate(case)
    for expected, actual in zip(by_sum(case), out, strict=True):
        for row, own in enumerate(expected):
            dense = torch.zeros(case.rewards.shape[1], dtype=torch.float64)
            dense[: len(own)] = torch.tensor(own, dtype=torch.float64)
            assert torch.allclose(actual[row].double(), dense, rtol=tolerance, atol=tolerance)


rows = st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=5)
factor = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.0, 1.0))


@settings(max_examples=examples(60), deadline=None)
@given(rows=rows, gamma=factor, lam=factor, seed=st.integers(0, 99))
def test_it_is_the_double_sum_for_any_pattern_of_ends(
    rows: list[tuple[int, bool]], gamma: float, lam: float, seed: int
) -> None:
    case = make_case([n for n, _ in rows], [end for _, end in rows], gamma, lam, seed)
    check(lambda case: gae(*case), case, 1e-9)
    single = case._replace(**{k: getattr(case, k).float() for k in ("rewards", "values", "bootstrap_value")})
    check(lambda case: gae(*case), single, 1e-4)


def one_chain(c: Case) -> Advantages:
    """All episodes as one chain: the first of the traps."""
    rewards, values = (t[c.valid][None] for t in (c.rewards, c.values))
    whole = torch.ones_like(rewards, dtype=torch.bool)
    out = gae(rewards, values, whole, c.terminated[-1:], c.bootstrap_value[-1:], c.gamma, c.gae_lambda)
    advantages = torch.zeros_like(c.rewards)
    advantages[c.valid] = out.advantages[0]
    return Advantages(advantages, (advantages + c.values).masked_fill(~c.valid, 0.0))


def test_one_chain_is_caught() -> None:
    with pytest.raises(AssertionError):
        check(one_chain, make_case([3, 7, 1, 5], [True, False, False, True], 0.9, 0.8), 1e-9)


def test_normalization_counts_unforced_steps_only_and_survives_one_or_equal_ones() -> None:
    a = torch.tensor([1.0, 2.0, 6.0, 1e6])[:, None]
    counted = torch.tensor([True, True, True, False])
    out = normalize(a, counted)
    assert out[:3].mean().abs() < 1e-6
    assert abs(float(out[:3].std(unbiased=False)) - 1.0) < 1e-6
    assert torch.equal(normalize(a, torch.zeros(4, dtype=torch.bool)), torch.zeros(4, 1))
    one = torch.tensor([False, False, True, False])
    assert torch.equal(normalize(a, one), a)
    equal = normalize(torch.full((3, 1), 7.0), torch.ones(3, dtype=torch.bool))
    assert torch.equal(equal, torch.zeros(3, 1))
