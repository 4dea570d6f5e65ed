"""The learner in a thread of its own, so that its process can be asked how it is doing and told to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from actors.config import PolicyConfig, QueueConfig
from actors.spaces import Spaces
from actors.transport.redis import connect
from learner.checkpoint import Progress, load_checkpoint
from learner.config import LearnerConfig
from learner.train import Learner


@dataclass(frozen=True)
class LearnerSettings:
    """All that a learner process is given."""

    config: LearnerConfig
    policy: PolicyConfig
    queue: QueueConfig
    spaces: Spaces
    run_dir: str
    seed: int
    redis: str
    namespace: str
    resume: bool
    init_from: str = ""  # checkpoint whose weights a new run starts from


@dataclass(frozen=True)
class LearnerStatus:
    progress: Progress
    done: bool
    new_metrics: list[dict[str, float]] = field(default_factory=list)  # of updates since the last poll
    new_notes: list[str] = field(default_factory=list)  # what a person should know, since the last poll


class LearnerService:
    """`start`, `poll`, `stop`; an error of the learner's thread is raised by the next `poll`."""

    def __init__(
        self, settings: LearnerSettings, make_report: Callable[[], Callable[[dict[str, float]], None]] | None = None
    ):
        torch.set_num_threads(1)
        run_dir = Path(settings.run_dir)
        resume = load_checkpoint(run_dir) if settings.resume else None
        self._report = make_report() if make_report else lambda metrics: None
        transport = connect(settings.redis, settings.queue, settings.namespace)
        init = load_checkpoint(Path(settings.init_from)).weights if settings.init_from else None
        self._learner = Learner(
            settings.config,
            settings.policy,
            settings.spaces,
            transport,
            run_dir,
            settings.seed,
            resume,
            self._note,
            init if resume is None else None,
        )
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._metrics: list[dict[str, float]] = []
        self._told = 0  # notes handed out
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def poll(self) -> LearnerStatus:
        """Progress, and the metrics of updates since the last poll."""
        with self._lock:
            metrics, self._metrics = self._metrics, []
        if self._error is not None:
            raise self._error
        notes = self._learner.notes
        fresh, self._told = notes[self._told :], len(notes)
        return LearnerStatus(self._learner.progress, not self._thread.is_alive(), metrics, fresh)

    def stop(self) -> Progress:
        """Finish the update under way, write the checkpoint, and return."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._learner.progress

    def _run(self) -> None:
        try:
            self._learner.run(self._stop.is_set)
        except BaseException as error:  # handed to whoever polls
            self._error = error

    def _note(self, metrics: dict[str, float]) -> None:
        self._report(metrics)
        with self._lock:
            self._metrics.append(metrics)
