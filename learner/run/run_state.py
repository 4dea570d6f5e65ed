"""`RunState`: what a learner has trained, kept in agreement with the run's folder and the store.

Episodes are acknowledged once a checkpoint holds them, and weights are published last. `learner.run.checkpoint`
explains why a learner that was replaced can do no harm.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from actors.errors import UserError
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import load_weights, to_weights
from actors.transport.base import Generation, OutOfMemory, Unreachable
from actors.transport.redis import Transport
from actors.transport.retry import Backoff, Retry
from learner.ack_tracker import AckTracker
from learner.config import LearnerConfig
from learner.intake import Intake
from learner.run.checkpoint import Checkpoint, LearnerProgress, load_checkpoint, restore_optimizer, save_checkpoint
from learner.run.disk import until_there_is_room
from learner.run.lineage import Lineage
from learner.run.metrics_log import MetricsLog, copy_lines

log = logging.getLogger(__name__)
T = TypeVar("T")
MAX_BROKEN = 3  # updates in a row with gradients that are not finite, before the last sound checkpoint is restored


class RunState:
    """Opens generations, saves, acknowledges, publishes and rolls back."""

    def __init__(
        self,
        config: LearnerConfig,
        network: FactoredRecurrentActorCritic,
        optimizer: torch.optim.Optimizer,
        transport: Transport,
        run_dir: Path,
        intake: Intake,
        wandb: str | None,
    ) -> None:
        self.config, self.network, self.optimizer, self.transport = config, network, optimizer, transport
        self.run_dir, self.intake, self.notes, self._wandb = run_dir, intake, intake.notes, wandb
        self.progress = LearnerProgress()
        self.lineage = Lineage(run_dir, transport)
        self.ack_tracker = AckTracker(transport, (), None)
        self._stop: Callable[[], bool] = lambda: False
        self.checkpoint_s = self.publish_s = 0.0  # of the last checkpoint and the last publication
        self._restored_at: int | None = None  # update after which weights were rolled back, until one is sound again
        self._publish_retry: Backoff | None = None  # while the store has no room for the weights
        self._saved: tuple[int, int] | None = None  # generation and update of this learner's last checkpoint
        self._log: MetricsLog | None = None

    def restore(self, checkpoint: Checkpoint) -> None:
        self._restore_weights(checkpoint)
        self.progress = checkpoint.progress
        self.ack_tracker = AckTracker(self.transport, checkpoint.consumed, checkpoint.memory)

    def open(self, stop: Callable[[], bool] = lambda: False) -> MetricsLog:
        """Take over the run. From the claim on, an older learner can change nothing; its earlier changes are in the
        checkpoint that is then loaded. Waits for the store, now and later, until `stop()`. Raises `Fenced` if another
        learner takes over."""
        self._stop = stop
        return Retry(self._warn, stop)(self._take_over)

    def with_store(self, call: Callable[[], T]) -> T | None:
        """Return the result of `call`, or None if the store was unreachable meanwhile and the queue was taken over
        again."""
        try:
            return call()
        except Unreachable as error:
            self._warn(f"{error}; waiting for it, and training continues when it is back")
            began = time.monotonic()
            Retry(stop=self._stop)(self._reopen)
            self._warn(f"Redis answers again, after {time.monotonic() - began:.1f} s")
        return None

    def settle(self) -> None:
        """Save an update, acknowledge its episodes and publish the weights, in this order."""
        due = self.progress.update % self.config.checkpoint_every == 0
        if due:
            self._save()
        self.with_store(lambda: self._acknowledge_and_publish(due))

    def finish(self) -> None:
        """Save and acknowledge the last update."""
        self._save()
        self.ack_tracker.durable()

    def publish_again(self) -> None:
        """Publish weights that the store had no room for, once it is time to retry."""
        if self._publish_retry is not None and self._publish_retry.due:
            self._publish()

    def roll_back_if_broken(self) -> None:
        """After `MAX_BROKEN` updates without finite gradients, restore the weights, moments and statistics of the last
        sound checkpoint in a new generation; counters continue. Raises `UserError` if there is no such checkpoint or
        rolling back did not help."""
        count = self.progress.broken_updates
        if count == 0:
            self._restored_at = None
        if count < MAX_BROKEN:
            return
        trouble = f"{count} updates in a row had gradients with NaN or Inf, and their steps were skipped"
        advice = "lower learner.lr, and look for extreme rewards or observations"
        path = self.lineage.newest_sound()
        if path is None:
            raise UserError(f"{trouble}; there is no earlier checkpoint to roll back to: {advice}")
        if self._restored_at is not None:
            raise UserError(f"{trouble}, again after the rollback at update {self._restored_at}: {advice}")
        sound = load_checkpoint(path)
        self._restore_weights(sound)
        self._restored_at = self.progress.update
        self._warn(
            f"{trouble}; rolled back to the weights of update {sound.progress.update}. If this happens again: {advice}"
        )
        kept = sound.progress.episodes_trained - sound.progress.episodes_abandoned
        self.progress = replace(
            self.progress, broken_updates=0, episodes_abandoned=self.progress.episodes_trained - kept
        )
        with suppress(Unreachable):
            self.ack_tracker.acknowledge()
        Retry(self._warn, self._stop)(lambda: self._reopen(sound.progress.version))

    def _restore_weights(self, checkpoint: Checkpoint) -> None:
        load_weights(self.network, checkpoint.weights)
        self.optimizer.state.clear()
        restore_optimizer(self.optimizer, self.network, checkpoint.moments)

    def _take_over(self) -> MetricsLog:
        newest = self.lineage.take_over()
        if newest is not None:
            self.restore(newest)
        update, folder = self.progress.update, self.lineage.folder
        with self._folder_in_use():
            copy_lines(self.lineage.lines_from, folder, update, self._when_full)
            self._open_generation()
            self._log = MetricsLog(self.run_dir, folder, update, self._when_full, self._wandb, self.lineage.check)
        return self._log

    def _reopen(self, rolled_back_to: int | None = None) -> None:
        """Claim and open the next generation after an outage or a rollback. It may be unknown which calls took effect,
        so everything pending is examined again. Raises `Fenced` if another learner has taken over."""
        self.lineage.advance(self.progress.update)
        with self._folder_in_use():
            if self._log is not None:
                self._log.move(self.lineage.folder, self.progress.update)
            self._open_generation(rolled_back_to)

    @contextmanager
    def _folder_in_use(self) -> Iterator[None]:
        """Raise `Fenced` if a file is missing because a later generation has removed it."""
        try:
            yield
        except FileNotFoundError:
            self.lineage.check()
            raise

    def _open_generation(self, rolled_back_to: int | None = None) -> None:
        """Open the claimed generation, which fences episodes of weights newer than `rolled_back_to` (default: the
        current ones). Then recover the episodes that an earlier learner left pending, and publish the initial weights.
        The generation's first file is written before that, so that late files of older learners sort below it."""
        p, number = self.progress, self.lineage.generation
        unsaved = self.config.checkpoint_every if p.generation else 0  # versions that may have been published since
        highest = max([p.version, *(self.lineage.opened(known)[0] for known in self.lineage.claimed())])
        floor = Generation(p.generation, highest + 1 + unsaved)
        back = p.version if rolled_back_to is None else rolled_back_to
        self._write_checkpoint(replace(p, generation=number, version=back))
        generation = self.ack_tracker.open(back, floor, number)
        self.intake.recover(self.ack_tracker.consumed)
        abandoned = self.ack_tracker.revoke(p.episodes_trained - p.episodes_abandoned)
        if abandoned and rolled_back_to is None:
            self._warn(
                f"{abandoned} episodes were trained by updates that no checkpoint holds, or whose checkpoints were "
                "removed: they now count as trained_then_lost"
            )
        self.lineage.began(generation.next_version, self.ack_tracker.opened())
        self.progress = replace(p, generation=number, version=generation.next_version)
        self._publish()

    def _save(self) -> None:
        """Write a checkpoint. Raises `Fenced` if another learner has claimed a later generation."""
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

        with self._folder_in_use():
            self._when_full(write)
        self.checkpoint_s = time.monotonic() - start

    def _acknowledge_and_publish(self, durable: bool) -> None:
        if durable:
            self.ack_tracker.durable()
        self._publish()

    def _publish(self) -> None:
        """Publish the weights. If the store has no room for them, training continues, because it frees memory, and
        publishing is retried later."""
        start, p, c = time.monotonic(), self.progress, self.config
        try:
            self.transport.publish(to_weights(self.network, p.version, p.generation, c.state_stride, c.burn_in))
        except OutOfMemory as error:
            if self._publish_retry is None:
                self._publish_retry = Backoff(0.25, 5.0)
                self._warn(
                    f"the store has no room for new weights ({error}): training continues and publishing is retried; "
                    "raise its maxmemory, or lower queue.max_bytes"
                )
            self._publish_retry.fail()
            return
        if self._publish_retry is not None:
            self._publish_retry = None
            self._warn("the store has room for weights again: they were published")
        self.publish_s = time.monotonic() - start

    def _warn(self, line: str) -> None:
        self.notes.append(line)
        log.warning(line)

    def _when_full(self, write: Callable[[], T]) -> T:
        return until_there_is_room(write, self.run_dir, self._warn, self._stop)
