"""A slow learner, a slow actor, a zombie, episodes that no learner can use, and weights with one flipped bit."""

from __future__ import annotations

import dataclasses
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import psutil
import pytest
import redis

from actors.codec import encode_episode
from actors.transport.base import EpisodeHeader, PutStatus
from actors.types.episode import Episode
from actors.workers.rollout_worker import RolloutWorker, WorkerSettings
from deploy.config.flags import parse
from deploy.launch.embedded_redis import EmbeddedRedis
from deploy.launch.process_settings import acting
from tests.chaos.harness import HurtRun, hurt_run
from tests.support.builders import make_episode
from tests.support.launching import rows, small

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(240)]
MAX_LAG, QUEUE = 4, 8


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HurtRun]:
    root = tmp_path_factory.mktemp("hurt")
    bounds = {"actors__count": 2, "queue__max_episodes": QUEUE, "learner__max_policy_lag": MAX_LAG}
    with EmbeddedRedis() as server, hurt_run(root, "hurt", server, **bounds) as run:
        yield run


@contextmanager
def paused(process: psutil.Process) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def test_while_the_learner_stands_still_actors_fill_the_queue_and_park(run: HurtRun) -> None:
    (learner,) = run.processes("LearnerService")
    with paused(learner):
        run.wait_for(lambda: run.ledger().queued >= QUEUE)
        time.sleep(1.0)
        full = run.ledger()
        time.sleep(3.0)
        later = run.ledger()
        assert later.queued <= QUEUE
        assert later.accepted == full.accepted
        for who, a in later.actors.items():
            assert a.dropped_backpressure == 0
            assert a.produced - full.actors[who].produced <= 2  # at most the wave under way
    run.running_again("learner", time.monotonic())
    run.identities()


def test_a_slow_and_a_fast_actor_both_count_and_the_lag_stays_bounded(run: HurtRun) -> None:
    slow = run.processes("RayRolloutWorker")[0]
    before, over = len(run.episode_ids), threading.Event()

    def hinder() -> None:
        while not over.wait(0.1):
            with paused(slow):
                over.wait(0.5)

    thread = threading.Thread(target=hinder)
    thread.start()
    try:
        run.wait_for_updates(25)
    finally:
        over.set()
        thread.join()
    shares = Counter(i.split("/")[1] for i in run.episode_ids[before:])
    assert len(shares) == 2
    assert min(shares.values()) < 0.8 * max(shares.values())  # one was slow indeed
    assert min(shares.values()) >= 3
    assert max(m["policy_lag_max"] for m in run.metrics) <= MAX_LAG
    ledger = run.identities()
    print("episodes by actor:", dict(shares), "dropped as stale:", ledger.dropped_stale)


def test_a_paused_actor_that_comes_back_as_a_zombie_loses_and_doubles_nothing(run: HurtRun) -> None:
    config, _, _ = parse("train", small(run.folder.parent, "hurt"), resumable=True)
    config = dataclasses.replace(config, queue=dataclasses.replace(config.queue, max_episodes=QUEUE))
    known = {number for _, number in run.ledger().actors}
    zombie = run.processes("RayRolloutWorker")[0]
    with paused(zombie):
        time.sleep(0.5)
        index = next(i for i in (0, 1) if _silent(run, f"actor-{i}"))
        successor = RolloutWorker(
            WorkerSettings(acting(config), index, "hurt", 0, run.server.url, "hurt"), restarted=True
        )
        assert successor.incarnation > max(known)
        produced = sum(successor.sample().episodes for _ in range(2))
    run.wait_for_updates(5)
    ledger = run.identities()
    late = ledger.actors[f"actor-{index}", successor.incarnation]
    assert late.produced == produced == late.accepted + late.unsent
    sent = Counter(tuple(i.split("/")[1:3]) for i in run.episode_ids)
    assert sent[f"actor-{index}", str(successor.incarnation)] > 0


class Careless(Episode):
    """Of an actor that ships whatever it has."""

    def validate(self) -> None:
        pass


def _silent(run: HurtRun, actor: str) -> bool:
    """Whether this actor produces nothing for a while."""

    def produced() -> int:
        return sum(a.produced for (name, _), a in run.ledger().actors.items() if name == actor)

    before = produced()
    time.sleep(2.0)
    return produced() == before


def test_episodes_that_cannot_be_trained_on_are_set_aside_one_line_each(run: HurtRun) -> None:
    before = run.ledger()
    sound = make_episode(1, actor="stranger", incarnation=1)
    fields = {f.name: getattr(sound, f.name) for f in dataclasses.fields(sound)}
    sick = Careless(**fields | {"rewards": np.where(np.arange(len(sound)) == 3, np.nan, sound.rewards)})
    payloads = {
        "of another schema": encode_episode(dataclasses.replace(sound, episode_id="hurt/stranger/1/1")),
        "with NaN": encode_episode(sick),
        "cut short": encode_episode(sound)[:200],
        "oversize": bytes(17 * 2**20),
    }
    with run.queue() as queue:
        generation = run.checkpoint.progress.generation
        for sequence, payload in enumerate(payloads.values(), start=1):
            header = EpisodeHeader(f"hurt/stranger/1/{sequence}", "stranger", 1, sequence, generation, 0, 0)
            while (status := queue.put(header, payload).status) is PutStatus.BUSY:
                time.sleep(0.05)
            assert status is PutStatus.OK
        run.wait_for(lambda: run.ledger().dead_lettered == before.dead_lettered + len(payloads))
        reasons = {letter.header.sequence: letter.reason for letter in queue.dead_letters()}
    assert "NaN" in reasons[2]
    assert "allowed" in reasons[4]
    assert len(reasons) == len(payloads)
    run.wait_for_updates(2)
    run.identities()


def test_weights_with_a_flipped_bit_are_never_acted_on(run: HurtRun) -> None:
    (learner,) = run.processes("LearnerService")
    client = redis.Redis.from_url(run.server.url)
    with paused(learner):
        time.sleep(0.5)
        weights = client.hgetall("{hurt}:weights")
        version = int(weights[b"head"])
        key = weights[f"payload:{version}".encode()]
        payload = bytearray(client.get(key))
        payload[len(payload) // 2] ^= 1
        client.set(key, bytes(payload))
        known = {number for _, number in run.ledger().actors}
        for process in run.processes("RayRolloutWorker"):
            process.kill()
        time.sleep(8.0)  # time for new processes, which have only these weights to fetch
    client.close()
    run.acting_again(time.monotonic(), known)
    run.wait_for_updates(4)
    reborn = [r for r in rows(run.folder / "episodes.jsonl") if int(r["episode_id"].split("/")[2]) not in known]
    assert version not in {r["policy_version"] for r in reborn}
    run.identities()


def test_at_its_end_the_ledger_and_the_lineage_agree(run: HurtRun) -> None:
    run.end()
