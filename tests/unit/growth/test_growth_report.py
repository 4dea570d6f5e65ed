"""A training run becomes an episode: its return is J, the learner's evaluation reproduces it, and resuming keeps it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors.codec import decode_episode
from actors.errors import UserError
from actors.growth.columns.column import Column
from actors.policy.network import FactoredRecurrentActorCritic, PolicyConfig
from actors.policy.publish import config_of, from_weights, to_weights
from actors.policy.state import StateSizes
from actors.sessions.local import LocalPolicy
from actors.sessions.session import PolicyError
from actors.slots.objective import Prices
from actors.slots.spaces import seed_spaces
from actors.types.actions import Op
from actors.types.episode import EndReason, Episode, RecurrentState
from actors.types.weights import WeightSet
from learner.ppo.batch import make_batch
from learner.ppo.minibatch import whole_batch
from learner.schema import EpisodeSchema
from tests.support.growth.growing import UNREACHABLE, Run, Script, mlp

HORIZON, SLOTS = 8, ["1"]
PRICES = Prices(0.5, 0.25)
COLUMN = Column(lambda scale: mlp(width=int(12 * scale)), count=1)


def untrained() -> WeightSet:
    """Return weights of a policy that grows at random, and stores the states of every other step."""
    torch.manual_seed(3)
    return to_weights(FactoredRecurrentActorCritic(seed_spaces(2), PolicyConfig(hidden_size=12)), 5, 1, 2)


WEIGHTS = untrained()


def local() -> LocalPolicy:
    return LocalPolicy(from_weights(WEIGHTS), WEIGHTS.version, WEIGHTS.generation, WEIGHTS.state_stride)


def start(folder: Path | bool, policy: Any = None, **options: Any) -> Run:
    """Start a run whose first epoch has not been trained."""
    prices = {"points_per_doubling": PRICES.doubling, "points_per_compute_doubling": PRICES.compute_doubling}
    settings: dict[str, Any] = {"horizon_epochs": HORIZON, "seed": 4, "columns": COLUMN, **prices}
    return Run(mlp(), policy or local(), SLOTS, **settings | {"report": folder} | options)


def written(folder: Path) -> Episode:
    (path,) = folder.glob("*.episode")
    return decode_episode(path.read_bytes())


@pytest.mark.parametrize("untrained_first", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_return_is_j_and_the_learner_reproduces_the_log_probs(tmp_path: Path, untrained_first: bool) -> None:
    spaces = seed_spaces(2)
    own = start(tmp_path)
    if untrained_first:
        own.grower.step(*own.validate())
    own.epochs(HORIZON)
    log, episode = own.grower.log, written(tmp_path)
    EpisodeSchema(spaces, StateSizes.from_config(config_of(WEIGHTS)), WEIGHTS.state_stride).check(episode)

    # The return, from the definition of J, the log, and the model that is exported.
    accuracies = [d.accuracy for d in log]
    assert len(accuracies) == HORIZON + untrained_first == len(episode) + 1
    kept, bare = (sum(p.numel() for p in model.parameters()) for model in (own.grower.export(), mlp()))
    doublings, compute = float(np.log2(kept / bare)), log[-1].compute_doublings
    assert doublings > 0.1 < compute, "nothing grew: the test shows nothing about prices"
    j = accuracies[-1] - accuracies[0] - PRICES.doubling * doublings - PRICES.compute_doubling * compute
    assert episode.undiscounted_return == pytest.approx(j, abs=1e-4)
    assert episode.telemetry["objective"] == pytest.approx(j, abs=1e-6)
    assert (episode.terminated, episode.truncated, episode.end_reason) == (True, False, EndReason.HORIZON)
    assert [Op(a).name for a in episode.actions[:, 0]] == [d.asked.split()[0] for d in log[:-1]]
    assert set(episode.policy_version) == {WEIGHTS.version}
    assert episode.generation == WEIGHTS.generation
    assert isinstance(episode.initial_state, RecurrentState)
    assert not episode.initial_state.h.any()
    np.testing.assert_array_equal(episode.states.h[:, :1], episode.initial_state.h)

    # What the learner computes with the same weights.
    network = from_weights(WEIGHTS)
    batch = make_batch([episode], spaces)
    with torch.no_grad():
        found = network.evaluate_steps(whole_batch(batch).steps(batch))
    np.testing.assert_allclose(found.log_probs.numpy(), episode.log_probs, atol=1e-5)
    values = network.value_normalizer.denormalize(found.values).numpy()
    np.testing.assert_allclose(values, episode.values, rtol=1e-4, atol=1e-4)
    assert not np.allclose(episode.log_probs, 0.0)


@pytest.mark.parametrize("cut", [3, pytest.param(1, marks=pytest.mark.long)])
def test_a_resumed_run_reports_the_same_bytes(tmp_path: Path, cut: int) -> None:
    whole, first, second = tmp_path / "whole", tmp_path / "first", tmp_path / "second"
    policy = local()
    own = start(whole, policy)
    own.epochs(cut)
    states = [part.state_dict() for part in (own.grower, own.model, own.optimizer)]
    states = torch.load(_saved(states, tmp_path / "states"), weights_only=True)
    own.epochs(HORIZON - cut)
    resumed = start(second, policy)
    for part, state in zip((resumed.grower, resumed.model, resumed.optimizer), states, strict=True):
        part.load_state_dict(state)
    resumed.epochs(HORIZON - cut)
    (expected,), (found,) = whole.glob("*"), second.glob("*")
    assert (found.name, found.read_bytes()) == (expected.name, expected.read_bytes())

    closed = start(first, policy)
    for part, state in zip((closed.grower, closed.model, closed.optimizer), states, strict=True):
        part.load_state_dict(state)
    closed.grower.close()  # right after resuming
    if cut > 1:
        episode, complete = written(first), written(whole)
        assert (len(episode), episode.end_reason, episode.truncated) == (cut - 1, EndReason.CUT, True)
        for name in ("obs", "actions", "log_probs", "masks", "values", "rewards", "policy_version"):
            np.testing.assert_array_equal(getattr(episode, name), getattr(complete, name)[: cut - 1])
        np.testing.assert_array_equal(episode.final_obs, complete.obs[cut - 1])
        assert episode.bootstrap_value == pytest.approx(float(complete.baseline_values[cut - 1]))
    else:
        assert not list(first.iterdir())


def _saved(states: Any, path: Path) -> Path:
    torch.save(states, path)
    return path


def test_only_actions_of_the_policy_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A veto ends the report before the decision that was not executed."""
    plain = start(tmp_path / "plain").epochs(HORIZON)
    ops = [d.op for d in plain.grower.log]
    first = next(k for k, op in enumerate(ops) if op != "WAIT")
    own = start(tmp_path / "vetoed", veto=lambda action: True).epochs(HORIZON)
    assert own.grower.log[first].reason == "veto"
    assert f"ends here (epoch {first + 1}: veto)" in caplog.text
    files = list((tmp_path / "vetoed").iterdir())
    if first == 0:
        assert not files
    else:
        episode = written(tmp_path / "vetoed")
        assert len(episode) == first
        assert set(episode.actions[:, 0]) == {Op.WAIT}


class Failing(LocalPolicy):
    """A policy that does not answer once."""

    def __init__(self, network: FactoredRecurrentActorCritic, at: int) -> None:
        super().__init__(network, 5)
        self.at = at

    def open(self, *args: Any, **options: Any) -> Any:
        session = super().open(*args, **options)
        step, count = session.step, iter(range(1000))

        def sometimes(*inputs: Any) -> Any:
            if next(count) == self.at:
                raise PolicyError(UNREACHABLE.code, "away")
            return step(*inputs)

        session.step = sometimes
        return session


def test_a_failed_query_ends_the_report(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = start(tmp_path, Failing(from_weights(WEIGHTS), 3)).epochs(HORIZON)
    assert "away" in own.grower.log[3].reason
    episode = written(tmp_path)
    # Decision 2 led to an observation whose value is unknown, as the policy did not answer there.
    assert (len(episode), episode.end_reason) == (2, EndReason.CUT)
    assert "2 decisions before it are in" in caplog.text


def test_a_rule_is_reported_as_a_demonstration(tmp_path: Path) -> None:
    rule = "periodic:start=1,every=1,seeds=2,training=1"
    start(tmp_path, rule).epochs(HORIZON)
    episode = written(tmp_path)
    assert not episode.log_probs.any()
    assert set(episode.policy_version) == {-1}
    assert Op.GERMINATE in episode.actions[:, 0]


@pytest.mark.parametrize(
    ("policy", "figures", "why"),
    [(None, 1, "the validation accuracy is unknown"), (Script([]), 2, "does not say what an episode records")],
)
def test_what_cannot_be_reported_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, policy: Any, figures: int, why: str
) -> None:
    own = start(tmp_path, policy)
    for _ in range(HORIZON):
        own.train()
        own.grower.step(*own.validate()[:figures])
    own.grower.close()
    assert not list(tmp_path.iterdir())
    assert caplog.text.count(why) == 1


@pytest.mark.long
def test_a_reported_run_is_sampled() -> None:
    def actions(**options: Any) -> list[str]:
        return [d.asked for d in start(False, **options).epochs(HORIZON).grower.log]

    greedy = actions()
    assert all(actions(seed=seed) == greedy for seed in (0, 1))
    assert any(actions(deterministic=False, seed=seed) != greedy for seed in range(3))


@pytest.mark.long
def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    own = start(tmp_path).epochs(3)
    state = own.grower.state_dict()
    good = state["report"]
    short, typed = good["standings"][:-1], [["x", 0.0, 0.0]]
    for damaged in ({**good, "episode": good["episode"][:-1]}, *({**good, "standings": s} for s in (short, typed)), 5):
        with pytest.raises(UserError, match="damaged"):
            start(tmp_path).grower.load_state_dict({**state, "report": damaged})
