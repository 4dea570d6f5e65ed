"""`LearnerService`: the learner in a thread, so that its process can answer polls and stop it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import torch

from actors.config import PolicyConfig, QueueConfig
from actors.errors import UserError
from actors.transport.redis import Transport, connect
from actors.transport.retry import Retry
from actors.types.spaces import Spaces
from learner.config import LearnerConfig
from learner.run.checkpoint import LearnerProgress, load_checkpoint
from learner.run.lineage import LineageFolder
from learner.train import Learner

T = TypeVar("T")


@dataclass(frozen=True)
class LearnerSettings:
    """Everything that a learner process needs."""

    config: LearnerConfig
    policy: PolicyConfig
    queue: QueueConfig
    spaces: Spaces
    run_dir: str
    seed: int
    redis: str = field(repr=False)  # may hold a password
    namespace: str
    wandb: str | None = None  # project of Weights & Biases
    init_from: str = ""  # initial weights of a run without a checkpoint; possibly also its prior
    advice: tuple[str, ...] = ()  # about the settings, for the user


@dataclass(frozen=True)
class LearnerStatus:
    progress: LearnerProgress | None  # None if it was not started yet, as in a process that replaced a dead one
    done: bool
    new_metrics: list[dict[str, float]] = field(default_factory=list)  # of updates since the last poll
    new_notes: list[str] = field(default_factory=list)  # for the user, since the last poll
    beats: int = 0  # number of heartbeats so far


def open_learner(
    s: LearnerSettings,
    connected: Callable[[], Transport],
    report: Callable[[dict[str, float]], None] = lambda metrics: None,
) -> Learner:
    """Return a learner that continues from the newest checkpoint in the run folder, or begins as the settings say.

    `connected` returns the learner's transport; it is called when the files have been read.
    """
    run_dir = Path(s.run_dir)
    found = LineageFolder(run_dir).newest()
    resume = found[1] if found else None
    wanted = bool(s.init_from) and (resume is None or s.config.keeps_prior)
    given = load_checkpoint(Path(s.init_from)).weights if wanted else None
    init, prior = given if resume is None else None, given if s.config.keeps_prior else None
    learner = Learner(s.config, s.policy, s.spaces, connected(), run_dir, s.seed, resume, report, init, s.wandb, prior)
    learner.notes.extend(s.advice)
    return learner


class LearnerService:
    """Starts, polls and stops a learner; `poll` raises the errors of its thread. Both the first learner of a run and
    one that replaces a dead one continue from the newest checkpoint in the run folder, which is located after the
    generation is claimed."""

    def __init__(
        self, settings: LearnerSettings, make_report: Callable[[], Callable[[dict[str, float]], None]] | None = None
    ):
        self._settings, self._make_report = settings, make_report
        self._learner: Learner | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._metrics: list[dict[str, float]] = []
        self._notes_read = 0  # notes that polls have returned
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)

    def start(self, max_seconds: float | None = None, here: Callable[[], T | None] = lambda: None) -> T | None:
        """Load the newest checkpoint and start training, unless training has already started. `max_seconds` replaces
        the configured limit, part of which may have elapsed. Returns `here()`, a description of this process."""
        if self._thread.is_alive():
            return here()
        torch.set_num_threads(1)
        s = self._settings
        if not Path(s.run_dir).is_dir():
            raise UserError(
                f"{s.run_dir} does not exist on the learner's machine: give a --run.root that all machines share"
            )
        report = self._make_report() if self._make_report else lambda metrics: None

        def note(metrics: dict[str, float]) -> None:
            report(metrics)
            with self._lock:
                self._metrics.append(metrics)

        def connected() -> Transport:
            return Retry(stop=self._stop.is_set)(lambda: connect(s.redis, s.queue, s.namespace))

        if max_seconds is not None:
            s = replace(s, config=replace(s.config, max_seconds=max_seconds))
        self._learner = open_learner(s, connected, note)
        self._thread.start()
        return here()

    def poll(self) -> LearnerStatus:
        """Return the progress, and the metrics of updates since the last poll."""
        if self._error is not None:
            raise self._error
        if self._learner is None:
            return LearnerStatus(None, False)
        with self._lock:
            metrics, self._metrics = self._metrics, []
        notes = self._learner.notes
        fresh, self._notes_read = notes[self._notes_read :], len(notes)
        done, beats = not self._thread.is_alive(), self._learner.heartbeat.beats
        return LearnerStatus(self._learner.progress, done, metrics, fresh, beats)

    def stopped(self, wait_s: float | None = None) -> bool:
        """Finish the current update and write the checkpoint. Returns whether that is done after `wait_s`."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(wait_s)
        return not self._thread.is_alive()

    def stop(self) -> LearnerProgress:
        """Finish the current update, write the checkpoint, and return the progress."""
        self.stopped()
        if self._error is not None:
            raise self._error
        return self._learner.progress if self._learner is not None else LearnerProgress()

    def _run(self) -> None:
        assert self._learner is not None
        try:
            self._learner.run(self._stop.is_set)
        except BaseException as error:  # raised by the next poll
            self._error = error
