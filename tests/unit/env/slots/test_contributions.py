"""Contributions of made-up value functions, compared with their definitions by brute force."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest

from actors.slots.contributions import contributions
from actors.types.actions import Op
from tests.support.env.walks import WAIT, act, tiny_reference

Value = Callable[[frozenset[int]], float]


def made_up(seed: int) -> Value:
    """Return an arbitrary value for each subset of up to eight slots."""
    table = np.random.default_rng(seed).normal(50, 20, 256)
    return lambda subset: float(table[sum(1 << s for s in subset)])


SPLITS = [
    (present, tuple(s for s in filled if s not in present))
    for filled in ((), (0,), (2,), (0, 1), (1, 2), (0, 1, 2), (0, 3, 5), (0, 1, 2, 3), (1, 3, 4, 6, 7))
    for n in range(len(filled) + 1)
    for present in list(combinations(filled, n))[:2]
]


@pytest.mark.parametrize(("present", "training"), SPLITS)
def test_contributions_equal_their_definitions(present: tuple[int, ...], training: tuple[int, ...]) -> None:
    v, on, filled = made_up(len(present)), frozenset(present), (*present, *training)
    found = contributions(v, present, training)
    for s in present:
        assert found.leave_one_out[s] == pytest.approx(v(on) - v(on - {s}))
    for s in training:
        assert found.leave_one_out[s] == pytest.approx(v(on | {s}) - v(on))  # the switch-on effect
    assert set(found.leave_one_out) == set(filled)
    if len(filled) > 3:
        assert found.interaction == {}
        return
    none = v(frozenset())
    for i in filled:
        terms = [v(frozenset({i, j})) - v(frozenset({i})) - v(frozenset({j})) + none for j in filled if j != i]
        assert found.interaction.get(i) == (pytest.approx(np.mean(terms)) if terms else None)


def test_the_environment_measures_contributions_by_switching_seeds() -> None:
    env = tiny_reference(horizon_epochs=25, slots=2, inner_steps=8)
    env.reset(seed=6)
    plan = [act(Op.GERMINATE, 0, 6, 0, 2, 0), act(Op.GERMINATE, 1, 3), act(Op.ADVANCE, 0), act(Op.ADVANCE, 1)]
    for action in [*plan, WAIT, WAIT, act(Op.ADVANCE, 0), WAIT]:
        *_, info = env.step(action)
    first, second = env.episode.lifecycle.slots[:2]
    assert (first.stage.name, second.stage.name) == ("HOLDING", "TRAINING")

    def accuracy(on: dict[int, float]) -> float:
        return env.network.evaluate(*env.observed, on)[0]

    both = {0: first.alpha, 1: second.alpha_target}
    only_first, only_second = {0: both[0]}, {1: both[1]}
    assert env.episode.observed_accuracies[-1] == accuracy(only_first)
    assert first.contribution == pytest.approx(accuracy(only_first) - accuracy({}))
    assert second.contribution == pytest.approx(accuracy(both) - accuracy(only_first))
    expected = accuracy(both) - accuracy(only_first) - accuracy(only_second) + accuracy({})
    assert first.interaction == second.interaction == pytest.approx(expected)
    assert info["contribution"] == pytest.approx([first.contribution, second.contribution, 0.0, 0.0])
    assert info["interaction"][:2] == pytest.approx([expected] * 2)
    for name in ("contribution", "interaction"):
        assert info[f"{name}_known"].tolist() == [True, True, False, False]
    assert [lane[-1] for lane in env.episode.timeline.contributions] == [*info["contribution"][:2], None, None]
