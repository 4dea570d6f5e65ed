"""The learner: take a batch, update, make it durable, acknowledge, publish."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from actors.config import PolicyConfig
from actors.env.slots.stage import Stage
from actors.errors import UserError
from actors.heartbeat import Heartbeat
from actors.metrics.run_status import run_status
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import from_weights, load_weights, to_weights
from actors.transport.backoff import Backoff
from actors.transport.base import Generation, OutOfMemory, Transport, Unreachable
from actors.transport.health import Health
from actors.transport.ledger import Ledger
from actors.transport.retry import Retry
from actors.types.episode import EndReason, Episode
from actors.types.spaces import Spaces
from actors.types.weights import WeightSet
from learner.ack_tracker import AckTracker
from learner.checkpoint import Checkpoint, LearnerProgress, load_checkpoint, restore_optimizer, save_checkpoint
from learner.config import LearnerConfig
from learner.config_warnings import ConfigWarnings
from learner.disk import until_there_is_room
from learner.intake import Intake, Taken, lag_split
from learner.interval import t_interval
from learner.lineage import Lineage
from learner.metrics_log import MetricsLog, copy_lines
from learner.ppo.batch import Batch, make_batch
from learner.ppo.optimizer import make_optimizer
from learner.ppo.update import PPOUpdate, is_recurrent
from learner.schema import EpisodeSchema

log = logging.getLogger(__name__)
Report = Callable[[dict[str, float]], None]
T = TypeVar("T")
_OF_HOSTS = ("final_accuracy", "growth_ratio")  # what only episodes of seed hosts tell
_MEANS = {k: k for k in (*_OF_HOSTS, *(f"stage/{stage.name}" for stage in Stage))} | {"panic": "panic_share"}
HEALTH = (
    "update",
    "episodes_per_s",
    "wait_s",
    "update_s",
    "checkpoint_s",
    "policy_lag_mean",
    "policy_lag_max",
    "policy_lag_in_flight",
    "policy_lag_in_queue",
)  # of an update's metrics, what the store is told
MAX_BROKEN = 3  # updates in a row with gradients that are not finite, before the last sound checkpoint is restored


def pick_device(wanted: str) -> torch.device:
    """`auto` is CUDA where present. Raises `UserError` for a CUDA that is not there."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("learner.device is cuda, but this torch sees no CUDA device: use auto or cpu")
    return torch.device("cuda" if wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available()) else "cpu")


def resumed_network(resume: Checkpoint, policy: PolicyConfig, spaces: Spaces) -> FactoredRecurrentActorCritic:
    """The network of a checkpoint. Raises `UserError` where the configuration asks for another architecture."""
    try:
        if resume.weights.spaces_hash != spaces.hash:
            raise UserError("it was trained with other spaces")
        return from_weights(resume.weights, spaces=spaces, config=policy).train()
    except UserError as error:
        raise UserError(
            f"the checkpoint's architecture differs from the configuration ({error}): "
            "resume with the run's own config.yaml"
        ) from error


class Learner:
    """One run's learner. It continues from the newest checkpoint in `run_dir`, or in a folder without any from
    `resume`. `report` receives the metrics of every update; a new run may start from `init`'s weights, and keep `prior`
    (see `learner.prior`);
    `wandb` is a project of Weights & Biases that metrics go to as well."""

    def __init__(
        self,
        config: LearnerConfig,
        policy: PolicyConfig,
        spaces: Spaces,
        transport: Transport,
        run_dir: Path,
        seed: int,
        resume: Checkpoint | None = None,
        report: Report | None = None,
        init: WeightSet | None = None,
        wandb: str | None = None,
        prior: WeightSet | None = None,
    ) -> None:
        self.transport, self.run_dir, self.seed, self.wandb = transport, run_dir, seed, wandb
        self.report = report or (lambda metrics: None)
        device = pick_device(config.device)
        self.network = self._network(policy, spaces, resume, init).to(device)
        self.config = config = config.for_core(is_recurrent(self.network))
        assert config.lr is not None
        self.optimizer = make_optimizer(self.network, config.lr, config.weight_decay)
        self.heartbeat = Heartbeat()
        taught = from_weights(prior, spaces=spaces, config=policy) if prior is not None else None
        self.ppo = PPOUpdate(self.network, self.optimizer, config, seed, self.heartbeat, taught)
        schema = EpisodeSchema(spaces, self.network.core.sizes, config.state_stride)
        self.intake = Intake(transport, schema, config.max_policy_lag, self._probe)
        self.notes = self.intake.notes
        self.config_warnings = ConfigWarnings(config, is_recurrent(self.network), self.notes)
        self.progress = LearnerProgress()
        self._restored_at: int | None = None  # update after which weights went back, until one is sound again
        self._checkpoint_s = self._publish_s = 0.0
        self._publish_again: Backoff | None = None  # while the store has no room for the weights
        self.lineage = Lineage(run_dir, transport)
        self._saved: tuple[int, int] | None = None  # generation and update of this learner's last checkpoint
        self._log: MetricsLog | None = None
        self._stop: Callable[[], bool] = lambda: False
        self._patience = Retry(self._tell, lambda: self._stop())
        self.ack_tracker = AckTracker(transport, config, (), None)
        if resume is not None:
            self._restore(resume)

    def _network(
        self, policy: PolicyConfig, spaces: Spaces, resume: Checkpoint | None, init: WeightSet | None
    ) -> FactoredRecurrentActorCritic:
        if resume is not None:
            return resumed_network(resume, policy, spaces)
        if init is not None:
            return from_weights(init, spaces=spaces, config=policy).train()
        torch.manual_seed(self.seed)
        return FactoredRecurrentActorCritic(spaces, policy)

    def _restore_weights(self, checkpoint: Checkpoint) -> None:
        load_weights(self.network, checkpoint.weights)
        self.optimizer.state.clear()
        restore_optimizer(self.optimizer, self.network, checkpoint.moments)

    def _restore(self, checkpoint: Checkpoint) -> None:
        self._restore_weights(checkpoint)
        self.progress = checkpoint.progress
        self.ack_tracker = AckTracker(self.transport, self.config, checkpoint.consumed, checkpoint.memory)

    def run(self, stop: Callable[[], bool] = lambda: False) -> LearnerProgress:
        """Train until `updates`, `max_seconds` or `stop`; the last update is always in a checkpoint."""
        began = time.monotonic()
        limit = self.config.max_seconds

        def over() -> bool:
            self.heartbeat()  # whoever waits for anything asks this again and again
            return stop() or (limit is not None and time.monotonic() - began >= limit)

        self._stop = over
        self.config_warnings.before_training()
        try:
            metrics_log = self._patience(self._start)
            before = self.progress.elapsed_s
            with metrics_log:
                while self.progress.update < self.config.updates and not over():
                    start = time.monotonic()
                    taken = self._with_store(lambda: self._collect(over))
                    if taken is None:
                        continue  # told to stop, or the store was away; what was taken is pending there
                    wait_s = time.monotonic() - start
                    episodes = [t.episode for t in taken]
                    lags = lag_split(taken, self.progress.version)
                    metrics = self._update(episodes, before + time.monotonic() - began) | lags
                    # Before the checkpoint: rows of an update that no checkpoint holds are removed on a restart.
                    metrics_log.write_episodes(self.progress.update, [self._row(e) for e in episodes])
                    self._settle(taken)
                    self.config_warnings.after_update(metrics, max(len(e) for e in episodes))
                    if self.progress.broken_updates == 0:
                        self._restored_at = None
                    elif self.progress.broken_updates >= MAX_BROKEN:
                        self._go_back()
                    seen = self._with_store(self._look)
                    metrics |= self._accounts(episodes, seen[0] if seen else Ledger(), wait_s, time.monotonic() - start)
                    metrics_log.write(self.progress.update, metrics | (run_status(*seen) if seen else {}))
                    self.report(metrics)
                    self._tell_health(metrics, time.monotonic() - start)
                self._checkpoint()
        except Unreachable:
            if not over():
                raise
        return self.progress

    def _start(self) -> MetricsLog:
        """Take the run over: nothing of an older learner counts from the claim on, and what counted before is in the
        checkpoint that is loaded then. Raises `Fenced` where another learner takes it over meanwhile."""
        newest = self.lineage.take_over()
        if newest is not None:
            self._restore(newest)
        update, folder = self.progress.update, self.lineage.folder
        try:
            copy_lines(self.lineage.lines_from, folder, update, self._when_full)
            self._open_generation()
            self._log = MetricsLog(self.run_dir, update, self._when_full, self.wandb, folder, self.lineage.check)
            return self._log
        except FileNotFoundError:
            self.lineage.check()  # a later generation has removed the folder of this one
            raise

    def _collect(self, over: Callable[[], bool]) -> list[Taken] | None:
        c = self.config

        def stop() -> bool:
            if self._publish_again is not None and self._publish_again.due:
                self._publish()
            return over()

        return self.intake.collect(c.batch_episodes, self.progress.version, stop, c.batch_steps)

    def _with_store(self, call: Callable[[], T]) -> T | None:
        """`call`'s result; None where the store was away meanwhile, and the queue has been taken over again."""
        try:
            return call()
        except Unreachable as error:
            self._tell(f"{error}; waiting for it, training goes on when it is back")
            began = time.monotonic()
            Retry(stop=self._stop)(self._reopen)
            self._tell(f"Redis answers again, after {time.monotonic() - began:.1f} s")
        return None

    def _reopen(self, went_back_to: int | None = None) -> None:
        """Claim and open the next generation for what this learner has trained, after an outage or with weights that it
        went back to: which calls took effect may be unknown, so that everything pending is looked at again. Raises
        `Fenced` where another learner has taken over."""
        self.lineage.advance(self.progress.update)
        try:
            if self._log is not None:
                self._log.move(self.lineage.folder, self.progress.update)
            self._open_generation(went_back_to)
        except FileNotFoundError:
            self.lineage.check()  # a later generation has removed the folder of this one
            raise

    def _tell(self, line: str) -> None:
        self.notes.append(line)
        log.warning(line)

    def _when_full(self, write: Callable[[], T]) -> T:
        return until_there_is_room(write, self.run_dir, self._tell, self._stop)

    def _open_generation(self, went_back_to: int | None = None) -> None:
        """Open the generation that was claimed, which fences the episodes of newer weights than `went_back_to`
        (default: the present ones); find what an earlier learner left pending, and publish the weights to start from.

        The first file of a generation comes before: late files of older learners sort below it from then on.
        """
        p, number = self.progress, self.lineage.generation
        unsaved = self.config.checkpoint_every if p.generation else 0  # versions that may have been published since
        floor = Generation(p.generation, max(p.version, self.lineage.highest_version()) + 1 + unsaved)
        back = p.version if went_back_to is None else went_back_to
        self._write_checkpoint(replace(p, generation=number, version=back))
        generation = self.ack_tracker.open(back, floor, number)
        self.intake.recover(self.ack_tracker.consumed, back)
        self.lineage.began(generation.next_version, self.ack_tracker.opened())
        self.progress = replace(p, generation=number, version=generation.next_version)
        self._publish()

    def _probe(self, episode: Episode) -> None:
        """One forward pass, as the update makes it."""
        self.ppo.forward(self._batch([episode]))

    def _batch(self, episodes: Sequence[Episode]) -> Batch:
        return make_batch(episodes, self.network.spaces, self.config.chunk_length, self.config.burn_in)

    def _update(self, episodes: Sequence[Episode], elapsed_s: float) -> dict[str, float]:
        start = time.monotonic()
        p = self.progress
        batch = self._batch(episodes)
        metrics = self.ppo(batch, p.update, p.version)
        steps = sum(len(e) for e in episodes)
        self.progress = replace(
            p,
            update=p.update + 1,
            version=p.version + 1,
            episodes_trained=p.episodes_trained + len(episodes),
            env_steps=p.env_steps + steps,
            elapsed_s=elapsed_s,
            broken_updates=p.broken_updates + 1 if metrics["skipped_steps"] else 0,
        )
        return metrics | {"update_s": time.monotonic() - start}

    def _go_back(self) -> None:
        """Weights, moments and statistics of the last sound checkpoint, in a new generation; counters run on.

        Raises `UserError` where there is none, or where going back did not help.
        """
        count = self.progress.broken_updates
        trouble = f"{count} updates in a row had gradients with NaN or Inf, and their steps were skipped"
        advice = "lower learner.lr, and look for rewards or observations of extreme size"
        path = self.lineage.newest_sound()
        if path is None:
            raise UserError(f"{trouble}; there is no earlier checkpoint to go back to: {advice}")
        if self._restored_at is not None:
            raise UserError(f"{trouble}, again since weights went back at update {self._restored_at}: {advice}")
        sound = load_checkpoint(path)
        self._restore_weights(sound)
        self._restored_at = self.progress.update
        note = f"{trouble}; went back to the weights of update {sound.progress.update}. Should this repeat: {advice}"
        self.notes.append(note)
        log.warning(note)
        self.progress = replace(self.progress, broken_updates=0)
        with suppress(Unreachable):
            self.ack_tracker.acknowledge(self.progress.version)
        self._patience(lambda: self._reopen(sound.progress.version))

    def _settle(self, taken: Sequence[Taken]) -> None:
        """Durable first, then acknowledged, then published."""
        self.ack_tracker.applied(taken)
        if self.config.ack == "after_step":
            self._with_store(lambda: self.ack_tracker.acknowledge(self.progress.version))
        due = self.progress.update % self.config.checkpoint_every == 0
        if due:
            self._save()
        self._with_store(lambda: self._acknowledge_and_publish(due))

    def _acknowledge_and_publish(self, durable: bool) -> None:
        if durable:
            self._acknowledge()
        self._publish()

    def _checkpoint(self) -> None:
        self._save()
        self._acknowledge()

    def _save(self) -> None:
        """Raises `Fenced` where another learner has claimed a later generation."""
        self.ack_tracker.look()
        self._write_checkpoint(self.progress)

    def _write_checkpoint(self, progress: LearnerProgress) -> None:
        start, c = time.monotonic(), self.config
        progress = replace(progress, dropped_stale=progress.dropped_stale + self.intake.dropped_stale)
        key = (progress.generation, progress.update)

        def write() -> None:
            again, self._saved = self._saved == key, key
            save_checkpoint(
                self.lineage.checkpoints,
                self.network,
                self.optimizer,
                progress,
                self.ack_tracker.consumed,
                c.state_stride,
                c.checkpoints_kept,
                self.ack_tracker.memory,
                self.lineage.ancestors,
                self.lineage.fence,
                again,
            )

        try:
            self._when_full(write)
        except FileNotFoundError:
            self.lineage.check()  # a later generation has removed the unfinished file
            raise
        self._checkpoint_s = time.monotonic() - start

    def _acknowledge(self) -> None:
        """What is in a checkpoint."""
        p = self.progress
        self.ack_tracker.durable(p.version, sound=p.broken_updates == 0)

    def _publish(self) -> None:
        """Where the store has no room for the weights, training goes on, as it is what makes room; publishing alone is
        tried again."""
        start, p = time.monotonic(), self.progress
        try:
            self.transport.publish(to_weights(self.network, p.version, p.generation, self.config.state_stride))
        except OutOfMemory as error:
            if self._publish_again is None:
                self._publish_again = Backoff(0.25, 5.0)
                self._tell(
                    f"the store has no room for new weights ({error}): training goes on, and they are published when "
                    "there is room; raise its maxmemory, or lower queue.max_bytes"
                )
            self._publish_again.fail()
            return
        if self._publish_again is not None:
            self._publish_again = None
            self._tell("the store has room for weights again; they are published")
        self._publish_s = time.monotonic() - start

    def _tell_health(self, metrics: dict[str, float], cycle_s: float) -> None:
        """For `tamiyo status`, and not worth waiting for."""
        starved_s, self.intake.starved_s = self.intake.starved_s, 0.0
        told = {name: metrics[name] for name in HEALTH if name in metrics}
        with suppress(Unreachable):
            self.transport.tell(told | {"cycle_s": cycle_s, "starved_s": starved_s, "publish_s": self._publish_s})

    def _look(self) -> tuple[Ledger, Health]:
        return self.transport.ledger(), self.transport.health()

    def _accounts(self, episodes: Sequence[Episode], ledger: Ledger, wait_s: float, cycle_s: float) -> dict[str, float]:
        whole = [e for e in episodes if e.end_reason is not EndReason.CUT] or episodes
        returns, p = [_objective(e) for e in whole], self.progress
        interval = t_interval(returns)
        return {
            "update": p.update,
            "policy_version": p.version,
            "elapsed_s": p.elapsed_s,
            "episodes_per_s": len(episodes) / cycle_s,
            "env_steps": p.env_steps,
            "episodes_trained": p.episodes_trained,
            "return_mean": float(np.mean(returns)),
            "return_std": float(np.std(returns)),
            **(dict(zip(("return_low", "return_high"), interval, strict=True)) if interval else {}),
            "paid_mean": float(np.mean([e.telemetry.get("episode_return", e.undiscounted_return) for e in whole])),
            **_of_hosts(whole),
            "episode_steps": float(np.mean([e.telemetry.get("episode_steps", len(e)) for e in whole])),
            "queue_depth": ledger.queued,
            "dropped_stale": p.dropped_stale + self.intake.dropped_stale,
            "dead_lettered": ledger.dead_lettered,
            "wait_s": wait_s,
            "checkpoint_s": self._checkpoint_s,
            "publish_s": self._publish_s,
        }

    @staticmethod
    def _row(episode: Episode) -> dict[str, Any]:
        return {
            "episode_id": episode.episode_id,
            "task_id": episode.task_id,
            "seed": episode.seed,
            "policy_version": episode.oldest_version,
            "return": _objective(episode),
            "steps": len(episode),
            "end_reason": str(episode.end_reason),
            **{k: episode.telemetry[k] for k in _OF_HOSTS if k in episode.telemetry},
        }


def _objective(episode: Episode) -> float:
    """J where the environment reports it, else the return; of the whole episode, where this is a segment of it."""
    whole = episode.telemetry.get("episode_return", episode.undiscounted_return)
    return episode.telemetry.get("objective", whole)


def _of_hosts(episodes: Sequence[Episode]) -> dict[str, float]:
    """Means over episodes of what all of them tell, where they are of seed hosts."""
    told = set.intersection(*(set(e.telemetry) for e in episodes))
    return {name: float(np.mean([e.telemetry[key] for e in episodes])) for key, name in _MEANS.items() if key in told}
