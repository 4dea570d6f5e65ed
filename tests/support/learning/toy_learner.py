"""A producer and a learner for tests of the learner's loop."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actors.codec import encode_episode
from actors.policy.acting.policy import ActingPolicy
from actors.policy.publish import from_weights
from actors.transport.base import EpisodeHeader, PutStatus
from actors.transport.ledger import ActorLedger
from actors.transport.redis import Transport
from actors.types.episode import Episode
from learner.config import LearnerConfig
from learner.run.checkpoint import load_checkpoint
from learner.schema import EpisodeSchema
from learner.train import Learner
from tests.support.learning.toy import SPACES, toy_network, toy_seed, toy_wave
from tests.support.stores import Store

Spoil = Callable[[Episode], bytes]


def handle(store: Store | Transport) -> Transport:
    return store() if isinstance(store, Store) else store


class ToyProducer:
    """An actor without a process: it fills the queue with the published weights whenever the learner reads it."""

    def __init__(
        self, store: Store | Transport, spoil: dict[int, Spoil] | None = None, keep_version: int | None = None
    ) -> None:
        self.transport, self.numbers = handle(store), itertools.count()
        self.spoil, self.keep_version = spoil or {}, keep_version
        self.put, self.statuses = 0, list[PutStatus]()
        self.policy: ActingPolicy | None = None  # made once: most of the time would go into making networks

    def __call__(self) -> bool:
        """Serves as the learner's `stop`, which is called between two reads of the queue."""
        if self.transport.ledger().queued >= 4:
            return False
        weights = self.transport.fetch()
        assert weights is not None
        if self.policy is None:
            self.policy = ActingPolicy(from_weights(weights))
        self.policy.load(weights)
        version = weights.version if self.keep_version is None else self.keep_version
        seeds = [toy_seed(1 + (self.put + i) % 5, truncated=i % 2 == 0, salt=self.put + i) for i in range(4)]
        episodes = toy_wave(
            self.policy,
            seeds,
            state_stride=weights.state_stride,
            version=version,
            generation=weights.generation,
            names=self.numbers,
        )
        for episode in episodes:
            payload = self.spoil.get(self.put, encode_episode)(episode)
            self.statuses.append(self.transport.put(EpisodeHeader.from_episode(episode), payload).status)
            self.put += 1
        fenced = self.statuses.count(PutStatus.FENCED)
        totals = ActorLedger(self.put, self.put - fenced, refused_fenced=fenced)
        self.transport.report("actor0", 0, totals, {})
        return False


def toy_schema() -> EpisodeSchema:
    """What a learner of `toy_network` takes."""
    return EpisodeSchema(SPACES, toy_network().core.sizes, state_stride=1)


def make_learner(run_dir: Path, store: Store | Transport, resume: bool = False, **changes: Any) -> Learner:
    fields: dict[str, Any] = {"updates": 3, "batch_episodes": 4, "state_stride": 2, "device": "cpu"}
    config = LearnerConfig(**(fields | changes))
    policy = toy_network().config
    checkpoint = load_checkpoint(run_dir) if resume else None
    return Learner(config, policy, SPACES, handle(store), run_dir, seed=1, resume=checkpoint)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
