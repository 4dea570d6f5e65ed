"""An update whose batch is uninformative takes a smaller step; no other does."""

from __future__ import annotations

from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
import torch

from learner.ppo.step_scale import running_std, step_scale
from learner.run.checkpoint import load_checkpoint
from tests.support.learning.batches import evaluate_batch, toy_batch, toy_ppo
from tests.support.learning.toy import toy_network
from tests.support.learning.toy_learner import ToyProducer, lines, make_learner
from tests.support.stores import Store


@pytest.mark.parametrize(
    ("deviation", "usual", "explained", "share"),
    [
        (3.0, 3.0, 0.9, 1.0),
        (1.5, 3.0, 0.0, 1.0),  # half of what is usual
        (0.3, 3.0, 0.5, 0.2),
        (30.0, 3.0, -1.0, 0.5),
        (0.6, 3.0, -1.0, 0.2),  # both
        (3.0, 3.0, -300.0, 0.1),
        (0.0, 3.0, 0.0, 0.1),
        (0.0, 0.0, 0.0, 1.0),  # nothing has varied yet
        (inf, 3.0, nan, 1.0),
    ],
)
def test_share_of_the_learning_rate(deviation: float, usual: float, explained: float, share: float) -> None:
    assert step_scale(deviation, usual, explained) == pytest.approx(share)


def moved(usual: float, lr: float = 1e-3) -> float:
    """How far one step of Adam, from zero moments, takes the heads."""
    ppo, before = toy_ppo(lr, minibatches=1, update_epochs=1), toy_network()
    ppo.usual_advantage_std = usual
    ppo(toy_batch(), update=0, version=0)
    pairs = zip(ppo.network.heads.parameters(), before.heads.parameters(), strict=True)
    return float(torch.cat([(new - old).detach().flatten() for new, old in pairs]).norm())


def test_a_quiet_batch_moves_the_policy_less() -> None:
    """By normalized advantages alone, it would move it as far as any other."""
    usual, quiet = moved(0.0), moved(1e6)
    assert usual > 0
    assert quiet == pytest.approx(0.1 * usual, rel=1e-3)
    assert moved(0.0, lr=1e-4) == pytest.approx(quiet, rel=1e-3)


def test_errors_of_the_critic_move_the_policy_less() -> None:
    """In episodes of one step, whose rewards vary less than the values of the untrained critic."""
    batch = toy_batch((1,) * 40)
    returns = torch.linspace(1.0, 2.4, 40)
    batch = batch._replace(rewards=returns, terminated=torch.ones_like(batch.terminated))
    ppo = toy_ppo(1e-3, minibatches=1, update_epochs=1)
    with torch.no_grad():
        values = toy_network().value_normalizer.denormalize(evaluate_batch(toy_network(), batch).values)
    explained = 1.0 - float(np.var((returns - values).numpy()) / np.var(returns.numpy()))
    assert -8.0 < explained < -0.1
    metrics = ppo(batch, update=0, version=0)
    assert metrics["lr"] == pytest.approx(1e-3 / (1.0 - explained), rel=1e-3)
    assert [group["lr"] for group in ppo.optimizer.param_groups] == [1e-3] * len(ppo.optimizer.param_groups)


def running(deviations: list[float]) -> float:
    """The root of the exponential mean of squares, whose step is a tenth, from the first one on."""
    weights = 0.1 * 0.9 ** np.arange(len(deviations))[::-1]
    weights[0] *= 10
    return float(np.sqrt(np.sum(weights * np.square(deviations))))


def test_what_is_usual_outlives_the_learner(store: Store, tmp_path: Path) -> None:
    make_learner(tmp_path, store, updates=2).run(ToyProducer(store))
    make_learner(tmp_path, store, updates=4).run(ToyProducer(store))
    deviations = [line["advantage_std"] for line in lines(tmp_path / "metrics.jsonl")]
    assert len(set(deviations)) == 4
    assert load_checkpoint(tmp_path).progress.usual_advantage_std == pytest.approx(running(deviations))


def test_numbers_that_are_not_finite_are_not_usual() -> None:
    assert [running_std(2.0, number) for number in (inf, nan)] == [2.0, 2.0]
    assert running_std(0.0, inf) == 0.0
