"""`RolloutWorker`: one incarnation of an actor, with its sampler, copy of the policy and outbox. No Ray."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from actors.codec import InvalidWeights
from actors.config.pool import BUFFER_STEPS, ActingConfig
from actors.errors import UserError
from actors.heartbeat import Heartbeat
from actors.policy.acting.policy import ActingPolicy
from actors.policy.baselines import NeverGrow, RandomPolicy
from actors.policy.publish import from_weights
from actors.rollout.sampler import StreamSampler, make_sampler
from actors.rollout.wave import Policy, Provenance
from actors.transport.base import NewIncarnation, NoFunctions
from actors.transport.redis import connect
from actors.transport.retry import Retry
from actors.types.weights import WeightSet
from actors.workers.outbox import Outbox

log = logging.getLogger(__name__)
PolicyName = Literal["learned", "random", "never_grow"]
NO_LEARNER = "{} found no {}: is a learner running with the same Redis and run name?"
FIRST_WEIGHTS_S = 900.0  # a learner may pretrain before it publishes
MAX_BUSY_WAIT_S = 5.0  # per call of `sample`; the next call waits again if episodes are still unsent


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of one actor."""

    acting: ActingConfig
    index: int
    run: str  # first part of its episodes' ids
    seed: int  # of the run
    redis: str = field(repr=False)  # may hold a password
    namespace: str
    logs: str = ""  # run folder in whose folder `actors` its log is; "" leaves what it prints to Ray
    restarted: bool = False  # an earlier actor of this index was removed, or died
    first_weights_s: float = FIRST_WEIGHTS_S  # longest wait for a learner's first weights

    @property
    def name(self) -> str:
        """Name of the actor."""
        return f"actor-{self.index}"


@dataclass
class SampleReport:
    """Statistics of one call of `RolloutWorker.run`; the episodes themselves go through the queue."""

    actor: str
    incarnation: int
    episodes: int = 0
    steps: int = 0
    seconds: float = 0.0  # of sampling
    waited_s: float = 0.0  # for a busy queue
    away_s: float = 0.0  # for which the server was unreachable
    unsent: int = 0
    produced: int = 0  # in total, like the next two
    dropped: int = 0
    damaged_weights: int = 0
    rejected: int = 0
    fault: str = ""  # why the last episode was rejected

    @property
    def metrics(self) -> dict[str, float]:
        """Under the names of `actors/metrics/registry.py`."""
        return {
            "actor_episodes": self.produced,
            "actor_steps_per_s": self.steps / self.seconds if self.seconds > 0 else 0.0,
            "actor_dropped_backpressure": self.dropped,
            "actor_wait_s": self.waited_s,
            "actor_damaged_weights": self.damaged_weights,
            "actor_rejected": self.rejected,
        }


class PolicyEvaluation(NamedTuple):
    """Complete episodes of one version of the weights, played greedily. See `Sampler.play` for their results."""

    weights: WeightSet
    played: list[dict[str, Any]]
    fault: str = ""  # why there are none


class RolloutWorker:
    """Samples episodes from the start of an actor's process to its end.

    If `restarted`, the actor had an earlier incarnation, whose episode seeds it must not repeat.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        restarted: bool = False,
        report: Callable[[Mapping[str, float]], None] = lambda metrics: None,
        heartbeat: Heartbeat | None = None,
        max_busy_wait_s: float = MAX_BUSY_WAIT_S,
    ) -> None:
        self.settings, self._max_busy_wait_s = settings, max_busy_wait_s
        acting = settings.acting
        self._heartbeat = heartbeat or Heartbeat()
        self._retry = Retry(heartbeat=self._heartbeat)
        self._report = report
        self.transport = self._retry(lambda: connect(settings.redis, acting.queue, settings.namespace))
        self.name = settings.name
        began = time.monotonic()
        new = self._retry(lambda: self._new_incarnation(began))
        self.incarnation = new.number
        # Besides earlier incarnations in this pool, another pool may have had an actor of this name.
        lineage = self.incarnation if restarted or not new.is_first else None
        self.sampler = make_sampler(acting, settings.index, settings.seed, lineage, self._heartbeat)
        self.outbox = Outbox(self.transport, settings.run, self.name, self.incarnation, BUFFER_STEPS)
        self.damaged_weights = 0  # fetches that failed their checks
        self.policy: ActingPolicy | None = None
        self.weights: WeightSet | None = None  # that act
        self._sums = SampleReport(self.name, self.incarnation)
        self._reported_s: float | None = None  # when `run` returned

    @property
    def version(self) -> int:
        """Version of the weights that act, -1 before the first."""
        return -1 if self.weights is None else self.weights.version

    def run(self, seconds: float) -> SampleReport:
        """Sample and ship again and again for at least `seconds`, then report."""
        began_s, away_s = time.monotonic(), self._retry.outage_s
        self.outbox.health["idle_s"] = self.outbox.health.get("idle_s", 0.0) + began_s - (self._reported_s or began_s)
        report = self._sums = SampleReport(self.name, self.incarnation)
        self.sample()
        while time.monotonic() < began_s + seconds:
            self.sample()
        self._retry(self.outbox.report)
        report.away_s, report.unsent = self._retry.outage_s - away_s, len(self.outbox)
        report.produced, report.dropped = self.outbox.counts.produced, self.outbox.counts.dropped_backpressure
        report.rejected, report.fault = self.sampler.rejected, self.sampler.fault
        report.damaged_weights = self.damaged_weights
        self._report(report.metrics)
        self._reported_s = time.monotonic()
        return report

    def sample(self) -> None:
        """Act with the newest weights for a while and ship the completed episodes.

        While the queue is full, nothing new is sampled. Waits for the first weights, and raises `UserError` if none
        are published within `first_weights_s`.
        """
        start, sums, health = time.monotonic(), self._sums, self.outbox.health
        parked_s = self._ship()
        sums.waited_s += parked_s
        if len(self.outbox):
            return
        began = time.monotonic()
        policy, w = self._fetch()
        health["fetch_s"] = health.get("fetch_s", 0.0) + time.monotonic() - began
        source = Provenance(w.version, w.generation, w.state_stride, self.settings.seed, w.burn_in)
        episodes = self.sampler.sample(policy, source)
        for episode in episodes:
            self.outbox.add(episode)
        sums.seconds += time.monotonic() - start - parked_s
        sums.episodes += len(episodes)
        sums.steps += sum(map(len, episodes))
        health |= {"version": self.version, "damaged_weights": self.damaged_weights}
        sums.waited_s += self._ship()

    def play(self, player: PolicyName, seeds: Sequence[int], deterministic: bool = False) -> list[dict[str, Any]]:
        """Play one episode per seed without shipping it; see `Sampler.play` for the results."""
        policy: Policy
        if player == "learned":
            policy, _ = self._fetch()
        else:
            policy = (RandomPolicy if player == "random" else NeverGrow)(self.sampler.spaces)
        played = self.sampler.play(policy, self._source(), seeds, deterministic)
        return [result | {"policy_version": self.version} for result in played]

    def evaluate(self, seeds: Sequence[int], limit_s: float) -> PolicyEvaluation:
        """Play one episode per seed with the newest weights, greedily and without shipping it, for `limit_s` at most.
        A fault of an environment raises nothing: `fault` says what happened, and training continues."""
        policy, weights = self._fetch()
        deadline = time.monotonic() + limit_s
        assert isinstance(self.sampler, StreamSampler)
        try:
            played = self.sampler.play(policy, self._source(), seeds, True, lambda: time.monotonic() > deadline)
            return PolicyEvaluation(weights, played)
        except UserError as error:
            return PolicyEvaluation(weights, [], str(error))
        except TimeoutError as error:
            return PolicyEvaluation(weights, [], f"after {limit_s:.0f} s, {error}")

    def close(self) -> None:
        """Close the environments."""
        self.sampler.close()

    def _new_incarnation(self, began: float) -> NewIncarnation:
        try:
            return self.transport.new_incarnation(self.name)
        except NoFunctions:
            if time.monotonic() - began > self.settings.first_weights_s:
                raise UserError(NO_LEARNER.format(self.name, "prepared store")) from None
            raise

    def _source(self) -> Provenance:
        """Return the provenance of steps that are not shipped."""
        generation = 0 if self.weights is None else self.weights.generation
        return Provenance(self.version, generation, 1, self.settings.seed)

    def _ship(self) -> float:
        return self._retry(lambda: self.outbox.ship(self._max_busy_wait_s, self._heartbeat))

    def _newest(self) -> WeightSet | None:
        """Return the published weights, unless they act already, there are none, or they are damaged."""
        try:
            return self.transport.fetch("" if self.weights is None else self.weights.digest)
        except InvalidWeights as error:
            self.damaged_weights += 1
            log.warning("%s; continuing with the weights before them", error)
            return None

    def _fetch(self) -> tuple[ActingPolicy, WeightSet]:
        deadline = time.monotonic() + self.settings.first_weights_s
        while True:
            weights = self._retry(self._newest)
            if weights is not None:
                if self.policy is None:
                    self.policy = ActingPolicy(from_weights(weights))
                else:
                    self.policy.load(weights)
                if weights.version <= self.version:
                    line = "the learner went back from weights %d to %d, or started afresh: following it"
                    log.warning(line, self.version, weights.version)
                self.weights = weights
            if self.policy is not None and self.weights is not None:
                return self.policy, self.weights
            if time.monotonic() > deadline:
                raise UserError(NO_LEARNER.format(self.name, "weights"))
            time.sleep(0.1)
