"""Train in this process: one actor and the learner take turns, on an embedded Redis server. No Ray."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from actors.errors import UserError
from actors.transport.redis import connect
from actors.workers.rollout_worker import PolicyName, RolloutWorker, WorkerSettings
from deploy.config.schema import Config
from deploy.launch.best_policy import BestPolicy
from deploy.launch.comparison import Comparison, Stop
from deploy.launch.embedded_redis import DUMP, EmbeddedRedis
from deploy.launch.following import write_run_report
from deploy.launch.prepare import check_machine, prepare_here
from deploy.launch.process_settings import acting, learner_settings
from deploy.launch.processes import update_line
from deploy.launch.signals import stop_on_signal
from learner.service import open_learner


def train_in_process(config: Config, resume: Path | None = None) -> int:
    """Run a training in this process, with its files and its report. Returns 0, or 130 if it was interrupted."""
    if config.run.redis or config.run.address or config.external.spaces:
        raise UserError("--in-process uses its own server and no cluster: leave out --redis, --address and --spaces")
    config = replace(config, actors=replace(config.actors, count=1))
    check_machine(config)
    torch.set_num_threads(1)
    logging.getLogger("learner").addHandler(logging.NullHandler())  # what it warns of is printed
    console = Console(highlight=False)
    with ExitStack() as stack:
        config, run_dir = prepare_here(config, resume, stack, console)
        stop = stack.enter_context(stop_on_signal())
        server = stack.enter_context(EmbeddedRedis(config.run.append_only, run_dir / DUMP))
        config = replace(config, run=replace(config.run, redis=server.url))

        def note(line: str) -> None:
            console.print(line, soft_wrap=True, markup=False)

        def play(player: PolicyName, seeds: Sequence[int], deterministic: bool, stop: Stop) -> list[dict[str, Any]]:
            return worker.play(player, seeds, deterministic)

        shown = 0

        def report(metrics: dict[str, float]) -> None:
            nonlocal shown
            for line in (*learner.notes[shown:], update_line(metrics)):
                note(line)
            shown = len(learner.notes)
            best.after_update(metrics)

        best, s = BestPolicy(run_dir, config, note), learner_settings(config, run_dir)
        learner = open_learner(s, lambda: connect(s.redis, s.queue, s.namespace), report)
        actor = WorkerSettings(acting(config), 0, run_dir.name, config.run.seed, s.redis, s.namespace)
        # A full queue must not make it wait: only this process empties it.
        worker = RolloutWorker(actor, max_busy_wait_s=0.0)
        stack.enter_context(closing(worker))
        progress = learner.run(lambda: in_turns(worker, best, stop.is_set))
        if stop.is_set():
            console.print(f"stopped; continue with: tamiyo train --in-process --resume {run_dir}", soft_wrap=True)
            return 130
        best.finish(play, stop.is_set, progress.elapsed_s)
        Comparison(run_dir, config, progress.elapsed_s, note, stop.is_set, play, 1).run()
    headline, page = write_run_report(run_dir)
    console.print(f"{headline}\nreport: {page}", soft_wrap=True)
    return 0


def in_turns(worker: RolloutWorker, best: BestPolicy, stop: Callable[[], bool]) -> bool:
    """Whether `stop()`; if not, let the actor evaluate if that is due, and sample by the newest weights until the
    learner has something to take. The learner calls this whenever it waits."""
    while not stop():
        if best.due:
            best.take(worker.evaluate(best.seeds, best.began()))
        if worker.transport.ledger().queued:
            return False
        worker.sample()
    return True
