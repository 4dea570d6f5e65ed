"""The learner's loop: every episode is accounted for."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.codec import encode_episode
from actors.config import QueueConfig
from actors.errors import UserError
from actors.transport.ledger import LedgerError
from actors.types.episode import EndReason, Episode, RecurrentState
from learner.config import LearnerConfig
from learner.run.checkpoint import load_checkpoint
from learner.service import LearnerService, LearnerSettings
from tests.support.learning.toy import SPACES, toy_network
from tests.support.learning.toy_learner import Spoil, ToyProducer, lines, make_learner
from tests.support.stores import Store


def test_a_run_trains_accounts_and_publishes(store: Store, tmp_path: Path) -> None:
    reports: list[dict[str, float]] = []
    learner, producer = make_learner(tmp_path, store), ToyProducer(store)
    learner.report = reports.append
    progress = learner.run(producer)
    ledger = learner.transport.ledger()
    ledger.check()
    assert (progress.update, progress.version, progress.generation) == (3, 3, 1)
    assert ledger.trained == progress.episodes_trained == 12
    assert ledger.accepted == producer.put == ledger.trained + ledger.queued
    assert [r["policy_version"] for r in reports] == [1, 2, 3]  # one per update
    assert max(r["ratio_error"] for r in reports) < 1e-5
    rows = lines(tmp_path / "episodes.jsonl")
    assert len({row["episode_id"] for row in rows}) == 12
    assert progress.env_steps == sum(row["steps"] for row in rows)
    assert [line["update"] for line in lines(tmp_path / "metrics.jsonl")] == [1, 2, 3]
    with pytest.raises(LedgerError):  # and the identity does see one episode too few
        dataclasses.replace(ledger, trained=ledger.trained - 1).check()


def test_stale_episodes_are_dropped_and_counted_when_consumed(store: Store, tmp_path: Path) -> None:
    """The producer continues to claim version 0: within the lag it is trained on, beyond it dropped."""
    learner = make_learner(tmp_path, store, updates=9, max_policy_lag=1)
    producer = ToyProducer(store, keep_version=0)
    progress = learner.run(lambda: producer() or producer.put >= 20)
    ledger = learner.transport.ledger()
    ledger.check()
    assert progress.update == 2  # lags 0 and 1
    assert ledger.trained == 8
    assert ledger.dropped_stale == learner.intake.dropped_stale >= 8
    assert load_checkpoint(tmp_path).progress.dropped_stale == ledger.dropped_stale


def test_a_batch_may_be_counted_in_steps(store: Store, tmp_path: Path) -> None:
    learner = make_learner(tmp_path, store, batch_episodes=2, batch_steps=30, updates=4)
    learner.run(ToyProducer(store))
    rows = lines(tmp_path / "episodes.jsonl")
    for update in (1, 2, 3, 4):
        lengths = [row["steps"] for row in rows if row["update"] == update]
        assert sum(lengths) >= 30
        assert sum(lengths[:-8]) < 30  # and few more than that: what is missing is asked for by the lengths so far
    learner.transport.ledger().check()
    assert len({row["episode_id"] for row in rows}) == len(rows) == learner.progress.episodes_trained


def as_segment(number: int, last: bool) -> Spoil:
    """Makes an episode one of the segments of a longer one, of 40 steps and a return of 100 in all."""

    def spoil(episode: Episode) -> bytes:
        telemetry = {"segment": float(number), "episode_steps": 40.0, "episode_return": 100.0 if last else 7.0}
        kind = {} if last else {"end_reason": EndReason.CUT, "terminated": False, "truncated": True}
        rewards = np.full(len(episode), 0.5, np.float32)
        return encode_episode(dataclasses.replace(episode, telemetry=telemetry, rewards=rewards, **kind))

    return spoil


@pytest.mark.parametrize("ends", [True, False])
def test_a_segment_is_no_episode_and_the_last_one_tells_the_whole(store: Store, tmp_path: Path, ends: bool) -> None:
    """Without a last one there is no return: what an episode has gained so far rises with its length."""
    learner = make_learner(tmp_path, store, updates=1)
    learner.run(ToyProducer(store, spoil={n: as_segment(n, last=ends and n == 3) for n in range(100)}))
    (metrics,) = lines(tmp_path / "metrics.jsonl")
    whole = {"return_mean": 100.0, "return_std": 0.0, "episode_steps": 40.0}
    assert {name: metrics[name] for name in whole if name in metrics} == (whole if ends else {})
    assert not {"final_accuracy", *(() if ends else ("return_low", "paid_mean"))} & set(metrics)
    assert metrics["reward_mean"] == 0.5
    rows = lines(tmp_path / "episodes.jsonl")
    assert sorted(row["return"] for row in rows) == [7.0, 7.0, 7.0, 100.0 if ends else 7.0]


def corrupt(episode: Episode) -> bytes:
    data = bytearray(encode_episode(episode))
    data[len(data) // 2] ^= 0xFF
    return bytes(data)


NOT_FINITE = (("obs", np.nan), ("rewards", np.inf), ("log_probs", np.nan), ("values", -np.inf))


class Unchecked(Episode):
    """An actor whose own check let it pass."""

    def validate(self) -> None:
        pass


def not_finite(name: str, value: float) -> Spoil:
    def spoil(episode: Episode) -> bytes:
        fields = {**vars(episode), name: getattr(episode, name).copy()}
        fields[name].flat[-1] = value
        return encode_episode(Unchecked(**fields))

    return spoil


def replaced(**changes: Callable[[Episode], Any]) -> Spoil:
    return lambda e: encode_episode(dataclasses.replace(e, **{name: change(e) for name, change in changes.items()}))


def repeated(state: RecurrentState, times: int, axis: int) -> RecurrentState:
    return RecurrentState(*(np.repeat(t, times, axis) for t in state))


SPOILS = {
    "corrupt": corrupt,
    "of other spaces": replaced(spaces_hash=lambda e: "other"),
    "out of range": replaced(actions=lambda e: e.actions + 50),
    "masked": replaced(masks=lambda e: np.zeros_like(e.masks)),
    "of another network": replaced(states=lambda e: repeated(e.states, 2, 2)),
    "of another stride": replaced(
        states=lambda e: repeated(e.initial_state, -(-len(e) // 9), 1), state_stride=lambda e: 9
    ),
    # payloads that say otherwise than their headers
    "without id": replaced(episode_id=lambda e: "x7"),
    "of another actor": replaced(episode_id=lambda e: e.episode_id.replace("/actor0/", "/other/")),
    "of another generation": replaced(generation=lambda e: e.generation + 1),
    "of a newer version": replaced(policy_version=lambda e: e.policy_version + 1),
    **{f"{name} {value}": not_finite(name, value) for name, value in NOT_FINITE},
}


def test_unusable_episodes_are_set_aside_while_the_others_train(store: Store, tmp_path: Path) -> None:
    """Every other episode is one."""
    spoilt = {2 * n + 1: spoil for n, spoil in enumerate(SPOILS.values())}
    learner = make_learner(tmp_path, store, updates=4)
    progress = learner.run(ToyProducer(store, spoil=spoilt))
    ledger = learner.transport.ledger()
    ledger.check()
    assert progress.update == 4
    assert (ledger.trained, ledger.dead_lettered) == (16, len(SPOILS)) == (16, learner.intake.dead_lettered)
    letters = learner.transport.dead_letters()
    assert [letter.header.sequence for letter in letters] == list(spoilt)
    assert all(letter.reason for letter in letters)
    load_checkpoint(tmp_path)  # whose ids can be read


def test_advice_about_the_settings_is_reported_at_the_start(store: Store, tmp_path: Path) -> None:
    network, config = toy_network().config, LearnerConfig(state_stride=2, device="cpu")
    settings = LearnerSettings(
        config, network, QueueConfig(), SPACES, str(tmp_path), 0, store.url, store.namespace, advice=("lower it",)
    )
    learner = LearnerService(settings)
    learner.start()
    learner.stop()
    assert learner.poll().new_notes == ["lower it"]


@pytest.mark.parametrize("call", ["link", "mkdir", "fsync"])
def test_a_run_folder_that_turns_read_only_ends_the_run_with_one_line(
    store: Store, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, producer = make_learner(tmp_path, store, updates=9), ToyProducer(store)
    write = getattr(os, call)

    def refuse(*args: object, **options: object) -> object:
        if call == "mkdir" or learner.progress.update == 2:
            raise OSError(errno.EROFS, "Read-only file system", str(args[0]))
        return write(*args, **options)

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(UserError, match=r"cannot write to the run folder .*Read-only file system") as caught:
        learner.run(producer)
    assert "\n" not in str(caught.value)
