"""The learner: take a batch, update, save it, acknowledge it, publish the weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from actors.config import PolicyConfig
from actors.heartbeat import Heartbeat
from actors.policy.publish import from_weights
from actors.transport.base import Unreachable
from actors.transport.redis import Transport
from actors.types.episode import Episode
from actors.types.spaces import Spaces
from actors.types.weights import WeightSet
from learner.config import LearnerConfig
from learner.intake import Intake, TakenEpisode, lag_split
from learner.metric_warnings import MetricWarnings
from learner.network import first_network, pick_device
from learner.ppo.batch import Batch, make_batch
from learner.ppo.optimizer import make_optimizer
from learner.ppo.update import PPOUpdate
from learner.run.checkpoint import Checkpoint, LearnerProgress
from learner.run.disk import unwritable_reported
from learner.run.run_metrics import RunMetrics, episode_record
from learner.run.run_state import RunState
from learner.run_limits import RunLimits
from learner.schema import EpisodeSchema


class Learner:
    """The learner of a run. It continues from the newest checkpoint in `run_dir`, or from `resume` if there is none.
    `report` receives the metrics of every update. A new run may start with the weights `init` and keep `prior` (see
    `learner.ppo.prior`). `wandb` is the Weights & Biases project to log metrics to."""

    def __init__(
        self,
        config: LearnerConfig,
        policy: PolicyConfig,
        spaces: Spaces,
        transport: Transport,
        run_dir: Path,
        seed: int,
        resume: Checkpoint | None = None,
        report: Callable[[dict[str, float]], None] = lambda metrics: None,
        init: WeightSet | None = None,
        wandb: str | None = None,
        prior: WeightSet | None = None,
    ) -> None:
        self.transport, self.report, self.heartbeat = transport, report, Heartbeat()
        self.network = first_network(policy, spaces, seed, resume, init).to(pick_device(config.device))
        self.config = config = config.for_core(self.network.config.is_recurrent)
        assert config.lr is not None
        optimizer = make_optimizer(self.network, config.lr)
        kept = from_weights(prior, spaces=spaces, config=policy) if prior is not None else None
        self.ppo = PPOUpdate(self.network, optimizer, config, seed, self.heartbeat, kept)
        schema = EpisodeSchema(spaces, self.network.core.sizes, config.state_stride)
        self.intake = Intake(transport, schema, config.max_policy_lag, lambda e: self.ppo.forward(self._batch([e])))
        self.notes = self.intake.notes
        self.metric_warnings = MetricWarnings(config, self.notes)
        self.limits = RunLimits(config, self.notes)
        self.state = RunState(config, self.network, optimizer, transport, run_dir, self.intake, wandb)
        self.run_metrics = RunMetrics(transport, self.state)
        if resume is not None:
            self.state.restore(resume)

    @property
    def progress(self) -> LearnerProgress:
        return self.state.progress

    def run(self, stop: Callable[[], bool] = lambda: False) -> LearnerProgress:
        """Train until a limit of the configuration is reached or `stop` returns true. The last update is always saved
        in a checkpoint."""
        began, limit, state = time.monotonic(), self.config.max_seconds, self.state

        def over() -> bool:
            self.heartbeat()  # called repeatedly during every wait
            return stop() or (limit is not None and time.monotonic() - began >= limit)

        try:
            with unwritable_reported(state.run_dir), closing(state.open(over)) as metrics_log:
                elapsed_before = self.progress.elapsed_s
                while not self.limits.reached(self.progress) and not over():
                    start = time.monotonic()
                    taken = state.with_store(lambda: self._take(over))
                    if taken is None:
                        continue  # stopped, or the store was unreachable; episodes taken are still pending there
                    wait_s, episodes = time.monotonic() - start, [t.episode for t in taken]
                    lags = lag_split(taken, self.progress.version)
                    metrics = self._update(episodes, elapsed_before + time.monotonic() - began) | lags
                    state.ack_tracker.applied(taken)
                    metrics |= self.run_metrics.of_update(episodes, wait_s, start)
                    # Before the checkpoint: records of an update that no checkpoint holds are removed on a restart, and
                    # a copy of the run's folder, checkpoints first, has the records of all its checkpoints.
                    records = [episode_record(e) for e in episodes]
                    metrics_log.write_episodes(self.progress.update, records)
                    metrics_log.write(self.progress.update, metrics)
                    state.settle()
                    self.metric_warnings.after_update(metrics)
                    self.limits.after_update(records)
                    state.roll_back_if_broken()
                    self.report(metrics)
                    self.run_metrics.report_health(metrics, time.monotonic() - start)
                state.finish()
        except Unreachable:
            if not over():
                raise
        return self.progress

    def _take(self, over: Callable[[], bool]) -> list[TakenEpisode] | None:
        def stop() -> bool:
            self.state.publish_again()
            return over()

        c = self.config
        return self.intake.collect(c.batch_episodes, self.progress.version, stop, c.batch_steps)

    def _batch(self, episodes: Sequence[Episode]) -> Batch:
        return make_batch(episodes, self.network.spaces, self.config.chunk_length, self.config.burn_in)

    def _update(self, episodes: Sequence[Episode], elapsed_s: float) -> dict[str, float]:
        start, p = time.monotonic(), self.progress
        if not self.network.spaces.slots and not self.network.masked:
            self.network.masked = any(not e.masks.all() for e in episodes)
        self.ppo.usual_advantage_std = p.usual_advantage_std
        metrics = self.ppo(self._batch(episodes), p.update, p.version)
        broken = metrics["skipped_steps"] > 0
        self.state.progress = p.after_update(episodes, elapsed_s, broken, self.ppo.usual_advantage_std)
        return metrics | {"update_s": time.monotonic() - start}
