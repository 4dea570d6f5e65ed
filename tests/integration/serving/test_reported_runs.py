"""Training runs that are reported where a server decides: to a file, or to the endpoint that learns from them."""

from __future__ import annotations

import time
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
from actors.slots.spaces import seed_spaces
from actors.types.episode import EndReason, Episode
from actors.types.weights import WeightSet
from learner.schema import EpisodeSchema
from tests.support.growth.growing import Run, mlp
from tests.support.serving.servers import serving
from tests.support.serving.training_sessions import endpoint
from tests.support.waiting import wait_for

pytestmark = pytest.mark.integration
HORIZON = 8
SPACES = seed_spaces(2)
STRIDE = 2


def untrained() -> WeightSet:
    torch.manual_seed(3)
    return to_weights(FactoredRecurrentActorCritic(SPACES, PolicyConfig(hidden_size=12)), 9, 1, STRIDE)


WEIGHTS = untrained()
COLUMN = Column(lambda scale: mlp(width=int(12 * scale)), count=1)
EXACT = ("obs", "blueprint_indices", "actions", "masks", "rewards", "final_obs", "final_masks")
CLOSE = ("log_probs", "values", "baseline_values")


def start(policy: Any, report: Any = True, **options: Any) -> Run:
    prices = {"points_per_doubling": 0.5, "points_per_compute_doubling": 0.25}
    settings = {"horizon_epochs": HORIZON, "seed": 4, "timeout_s": 20.0, **prices} | options
    return Run(mlp(), policy, ["1"], columns=COLUMN, report=report, **settings)


def local_policy() -> LocalPolicy:
    return LocalPolicy(from_weights(WEIGHTS), 9, 1, STRIDE)


def written(folder: Path) -> Episode:
    (path,) = folder.glob("*.episode")
    return decode_episode(path.read_bytes())


def same(one: Episode, other: Episode) -> None:
    for name in EXACT:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for name in CLOSE:
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-4, atol=1e-5, err_msg=name)
    for ours, theirs in zip(one.states.arrays, other.states.arrays, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_served_policy_reports_the_file_of_a_local_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(WEIGHTS) as running:
        start(running.address).epochs(HORIZON).grower.close()  # this server learns from no session
    served = written(tmp_path / "tamiyo-episodes")
    start(local_policy(), tmp_path / "local").epochs(HORIZON)
    local = written(tmp_path / "local")
    same(served, local)
    assert np.unique(served.states.h[0].round(3), axis=0).shape[0] == 4  # stored before steps 0, 2, 4 and 6
    assert set(served.policy_version) == {9}
    assert served.generation == 1
    EpisodeSchema(SPACES, StateSizes.from_config(config_of(WEIGHTS)), local.state_stride).check(served)
    assert served.telemetry == local.telemetry
    assert served.telemetry["compute_doublings"] > 0


def test_an_endpoint_learns_from_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with endpoint(WEIGHTS) as own:
        run = start(own.address).epochs(HORIZON)
        (shipped,) = own.episodes(1)
        run.grower.close()
        assert own.transport.ledger().accepted == 1
    assert not list(tmp_path.iterdir())
    assert (shipped.terminated, shipped.end_reason) == (True, EndReason.ENVIRONMENT)
    start(local_policy(), tmp_path / "local").epochs(HORIZON)
    local = written(tmp_path / "local")
    for name in ("obs", "actions", "masks", "rewards"):  # whose sum is J
        np.testing.assert_array_equal(getattr(shipped, name), getattr(local, name))


@pytest.mark.long
def test_an_endpoint_keeps_the_session_through_long_epochs() -> None:
    with endpoint(WEIGHTS, session_timeout_s=0.6) as own:
        run = start(own.address, horizon_epochs=3)
        for _ in range(3):
            time.sleep(1.3)
            run.epochs(1)
        (shipped,) = own.episodes(1)
        assert (len(shipped), shipped.terminated) == (2, True)
        assert not any(d.reason for d in run.grower.log[:-1])


def test_a_run_that_ends_early_is_cut_at_the_endpoint(caplog: pytest.LogCaptureFixture) -> None:
    with endpoint(WEIGHTS) as own:
        start(own.address).epochs(4).grower.close()
        (shipped,) = own.episodes(1)
        assert (len(shipped), shipped.end_reason) == (3, EndReason.CUT)
        vetoed = start(own.address, veto=lambda action: True).epochs(HORIZON).grower
        first = next(k for k, d in enumerate(vetoed.log) if d.reason == "veto")
        (shipped,) = own.episodes(2)[1:] if first == 0 else _next(own, 2)
        assert len(shipped) == first
        assert vetoed.log[-2].asked  # an ordinary session has answered since
        assert own.shipper.accounts()[0].cut_sessions == 2
    assert "the endpoint keeps the decisions before it" in caplog.text


def _next(own: Any, accepted: int) -> list[Episode]:
    """Wait until this many episodes have been accepted in all, and return those that were not taken yet."""
    wait_for(lambda: own.transport.ledger().accepted >= accepted)
    return [decode_episode(d.payload) for d in own.transport.take(100, 0)]


@pytest.mark.long
def test_a_resumed_run_continues_its_session() -> None:
    with endpoint(WEIGHTS) as own:
        first = start(own.address).epochs(3)
        states = [part.state_dict() for part in (first.grower, first.model, first.optimizer)]
        resumed = start(own.address)
        for part, state in zip((resumed.grower, resumed.model, resumed.optimizer), states, strict=True):
            part.load_state_dict(state)
        resumed.epochs(HORIZON - 3)
        (shipped,) = own.episodes(1)
        whole = start(own.address).epochs(HORIZON)
        (again,) = _next(own, 2)
        np.testing.assert_array_equal(shipped.rewards, again.rewards)
        np.testing.assert_array_equal(shipped.actions, again.actions)
        whole.grower.close()


@pytest.mark.long
def test_a_lost_session_ends_the_report(caplog: pytest.LogCaptureFixture) -> None:
    with endpoint(WEIGHTS) as own:
        run = start(own.address).epochs(3)
        sessions = own.running.service.sessions
        own.running.call(lambda: [sessions.close(s) for s in list(sessions)])
        run.epochs(HORIZON - 3)
        assert "the server no longer has this episode" in run.grower.log[3].reason
        assert run.grower.log[4].asked
        wait_for(lambda: own.transport.ledger().accepted == 1)


def test_other_spaces_are_refused_in_one_line() -> None:
    with endpoint(WEIGHTS) as own, pytest.raises(UserError, match="cannot learn from this model: this run learns from"):
        Run(mlp(), own.address, ["1"], report=True)
