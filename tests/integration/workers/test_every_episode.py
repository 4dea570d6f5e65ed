"""Every episode that a sampler completes reaches the learner once: counted by its content at both ends, without the
ledger."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from actors.codec import decode_episode, encode_episode
from actors.config import ActingConfig, ActorsConfig, EnvConfig, GymConfig, PolicyConfig, QueueConfig
from actors.errors import UserError
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import to_weights
from actors.rollout.episode_files import write_bytes
from actors.rollout.sampler import make_sampler
from actors.transport.base import Miscounted
from actors.transport.ledger import ActorLedger
from actors.transport.redis import Transport
from actors.types.episode import Episode
from actors.workers.episode_shipper import EpisodeShipper
from actors.workers.outbox import Outbox
from actors.workers.rollout_worker import RolloutWorker, WorkerSettings
from deploy.commands.admin.episodes import EpisodeImport
from tests.support.builders import make_episode
from tests.support.learning.toy import toy_network, toy_seed, toy_wave
from tests.support.queueing import counts
from tests.support.stores import Store

QUEUE = QueueConfig(max_episodes=10_000)
HOSTS = EnvConfig(tasks=("spirals",), horizon_epochs=(2, 9), inner_steps=1, device="cpu")


def playing(envs: int, **played: Any) -> ActingConfig:
    return ActingConfig(actors=ActorsConfig(count=1, envs_per_actor=envs), queue=QUEUE, **played)


SETTINGS = {
    "waves whose episodes differ in length": playing(7, env=HOSTS),
    "a Gymnasium stream": playing(5, gym=GymConfig(id="CartPole-v1")),
    "a stream cut into segments": playing(3, gym=GymConfig(id="CartPole-v1", max_segment_steps=8)),
}


def content_of(episode: Episode) -> str:
    """An id of the episode's own, which neither the outbox nor the queue has given it."""
    parts = (episode.obs, episode.actions, episode.rewards, episode.final_obs)
    return f"{len(episode)} {hashlib.sha256(b''.join(part.tobytes() for part in parts)).hexdigest()}"


def received(consumer: Transport) -> Counter[str]:
    """What the learner's end of the queue has, all of which it settles."""
    found: Counter[str] = Counter()
    while deliveries := consumer.take(100, 0):
        found.update(content_of(decode_episode(delivery.payload)) for delivery in deliveries)
        consumer.ack([delivery.entry_id for delivery in deliveries])
    return found


@pytest.fixture
def consumer(store: Store) -> Transport:
    consumer = store(max_episodes=QUEUE.max_episodes)
    consumer.open_generation(-1, "learner")
    return consumer


@pytest.mark.parametrize("acting", SETTINGS.values(), ids=SETTINGS)
def test_each_episode_of_a_sampler_arrives_once(store: Store, consumer: Transport, acting: ActingConfig) -> None:
    spaces = make_sampler(acting, 0, 0, None).spaces
    consumer.publish(to_weights(FactoredRecurrentActorCritic(spaces, PolicyConfig()), 0, 1, 8, 16))
    worker = RolloutWorker(WorkerSettings(acting, 0, "run", 0, store.url, store.namespace))
    made: Counter[str] = Counter()
    add = worker.outbox.add

    def record(episode: Episode) -> None:
        made[content_of(episode)] += 1
        carried = 0 if episode.burn_in is None else len(episode.burn_in)
        assert carried == min(16, 8 * episode.telemetry.get("segment", 0))
        add(episode)

    worker.outbox.add = record
    for _ in range(3):
        worker.sample()
    assert len({content.split()[0] for content in made}) > 1  # lengths
    assert len(made) == made.total() > 10
    assert received(consumer) == made
    assert consumer.ledger().lost_with_store == 0


def test_an_actor_continues_with_its_weights_where_newer_ones_are_damaged(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    acting, learner = SETTINGS["a stream cut into segments"], store()
    learner.open_generation(-1, "learner")
    network = FactoredRecurrentActorCritic(make_sampler(acting, 0, 0, None).spaces, PolicyConfig())
    learner.publish(to_weights(network, 0, 1, 8))
    worker = RolloutWorker(WorkerSettings(acting, 0, "run", 0, store.url, store.namespace))
    worker.sample()
    for version, acted, damaged in ((1, 0, 1), (2, 2, 1)):
        learner.publish(to_weights(network, version, 1, 8))
        if version == 1:
            store.client.delete(store.key("weights:1:1"))
            learner.close()  # with the intact copy
            late = RolloutWorker(WorkerSettings(acting, 1, "run", 0, store.url, store.namespace, first_weights_s=0.2))
            with pytest.raises(UserError, match="found no weights"):  # a new actor waits rather than use them
                late.sample()
        worker.sample()
        assert (worker.version, worker.damaged_weights) == (acted, damaged)
    assert "continuing with the weights before them" in caplog.text


def test_each_episode_of_external_sessions_arrives_once(store: Store, consumer: Transport) -> None:
    shipper = EpisodeShipper(store(), "run", 100, 4)
    episodes = toy_wave(toy_network(), [toy_seed(1 + n % 6, False, n) for n in range(40)])
    for n, episode in enumerate(reversed(episodes)):
        shipper.add("token" * (n % 3), episode)
    assert shipper.close(10.0) == 0
    assert received(consumer) == Counter(map(content_of, episodes))


def test_each_imported_episode_arrives_once(store: Store, consumer: Transport, tmp_path: Path) -> None:
    network = toy_network()
    consumer.publish(to_weights(network, 0, 1, 1))
    episodes = toy_wave(network, [toy_seed(1 + n % 6, False, n) for n in range(12)])
    importer = EpisodeImport(store(), store.namespace, wait_s=1.0)
    for number, episode in reversed(list(enumerate(episodes))):
        path = tmp_path / f"{number}.episode"
        write_bytes(path, encode_episode(dataclasses.replace(episode, episode_id=f"other/a/0/{number}")))
        assert importer.put(path) == ""
    assert received(consumer) == Counter(map(content_of, episodes))


def outbox_of(transport: Transport) -> Outbox:
    transport.open_generation(-1, "learner")
    outbox = Outbox(transport, "run", "a", transport.new_incarnation("a").number, capacity_steps=1000)
    outbox.add(make_episode())
    outbox.ship(0.0)
    return outbox


def test_a_refusal_that_the_producer_did_not_expect_is_an_error(store: Store) -> None:
    outbox = outbox_of(transport := store())
    put_all = transport.put_all
    transport.put_all = lambda episodes: [put_all(episodes) for _ in range(2)][1]
    outbox.add(make_episode())
    with pytest.raises(Miscounted, match=r"run/a/\d+/2"):
        outbox.ship(0.0)


def test_an_accepted_episode_that_an_intact_store_does_not_know_is_an_error(store: Store) -> None:
    outbox = outbox_of(transport := store())
    outbox.counts = outbox.counts.plus(ActorLedger(produced=1, accepted=1))
    with pytest.raises(Miscounted, match="counts 1 accepted"):
        outbox.report()
    assert transport.ledger().lost_with_store == 0


@pytest.mark.parametrize(("older", "lost"), [(True, 1), (False, 2)])
def test_what_a_lost_store_had_accepted_is_counted_as_lost(store: Store, older: bool, lost: int) -> None:
    """A server that was restarted with an older file keeps the id of its memory, but not the connections."""
    outbox = outbox_of(transport := store())
    outbox.add(make_episode())
    thaw = store.freeze()
    outbox.ship(0.0)
    if older:
        thaw()
        transport.server.client.connection_pool.disconnect()
    else:
        store.empty()
    outbox.report()
    assert counts(transport, "lost_with_store") == (lost,)
