"""`BestPolicy`: evaluates the policy of a Gymnasium run from time to time, and keeps the one that was best.

An evaluation is an episode of each of a few seeds, the same in all evaluations, played greedily by one version of the
weights: the returns of a training are those of samples, and an episode may be of several versions. The mean of the best
policy is the highest of many, and so too high; `tamiyo play` plays other seeds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from actors.errors import UserError
from actors.policy.saved import BEST
from actors.rng import Purpose, stream
from actors.types.weights import WeightSet
from actors.workers.rollout_worker import PolicyEvaluation
from deploy.config.schema import Config
from deploy.launch.comparison import LEAST_S, Play, Stop
from deploy.report.numbers import number
from deploy.report.statistics import mean_interval
from learner.run.checkpoint import Checkpoint, LearnerProgress, load_checkpoint, save_policy

EVALUATIONS = "evaluations.jsonl"
EPISODES = 16
"""Of an evaluation, the same in all of them. More would narrow the interval, but take longer of the actor's time."""
SHARE = 0.1  # of the time of an actor that evaluations may take
SHORTEST_S = 10.0  # that an evaluation may always take
KNOWN = 1000  # versions whose update is remembered


class BestPolicy:
    """The evaluations in a run folder, one line each, and the best policy. `note` prints a line.

    `due` tells that an evaluation is to begin; `began` and `take` are its begin and end.
    """

    def __init__(self, run_dir: Path, config: Config, note: Callable[[str], None]) -> None:
        run, self._run_dir, self._note = config.run, run_dir, note
        self._on = bool(config.gym.id) and run.evaluate_every > 0
        self._every = run.evaluate_every
        self.seeds: list[int] = stream(run.seed, 0, Purpose.EVALUATION).integers(0, 2**31, EPISODES).tolist()
        self._best = _best_so_far(run_dir)
        self._made = {0: LearnerProgress()}  # by version
        self._updates = 0  # since the last evaluation
        self._evaluated = -1  # version
        self._began_s = self._next_s = 0.0
        self._faulty = False

    def after_update(self, metrics: dict[str, float]) -> None:
        """Note an update."""
        version = int(metrics["policy_version"])
        counts = {name: int(metrics[name]) for name in ("update", "episodes_trained", "env_steps")}
        self._made[version] = LearnerProgress(version=version, elapsed_s=metrics["elapsed_s"], **counts)
        self._updates += 1
        for old in list(self._made)[:-KNOWN]:
            del self._made[old]

    @property
    def due(self) -> bool:
        """Whether there were enough updates and enough time since the last evaluation."""
        return self._on and self._updates >= self._every and time.monotonic() >= self._next_s

    def began(self) -> float:
        """Note that an evaluation begins. Returns how many seconds it may take."""
        self._began_s, self._updates = time.monotonic(), 0
        elapsed_s = max(progress.elapsed_s for progress in self._made.values())
        return max(SHORTEST_S, SHARE * elapsed_s)

    def take(self, evaluation: PolicyEvaluation) -> None:
        """Record an evaluation, and keep its policy if none was better."""
        ended_s = time.monotonic()
        self._next_s = ended_s + (ended_s - self._began_s) * (1 / SHARE - 1)
        if evaluation.fault and not self._faulty:
            self._faulty = True
            self._note(f"no evaluation: {evaluation.fault}; evaluations are tried again")
        if evaluation.played:
            # Ray's arrays cannot be written, of which PyTorch warns.
            tensors = {name: array.copy() for name, array in evaluation.weights.tensors.items()}
            self._record(replace(evaluation.weights, tensors=tensors), evaluation.played)

    def finish(self, play: Play, stop: Stop, elapsed_s: float) -> None:
        """Evaluate the last policy of a training of `elapsed_s` if others were evaluated; say which is the best."""
        if self._best is None or not self._on:
            return
        deadline = time.monotonic() + max(LEAST_S, SHARE * elapsed_s)
        try:
            last = load_checkpoint(self._run_dir).weights
            if last.version != self._evaluated:
                self._record(last, play("learned", self.seeds, True, lambda: stop() or time.monotonic() > deadline))
        except (UserError, TimeoutError) as error:
            self._note(f"the last policy was not evaluated: {error}")
        self._note(f"the best policy is that of update {self._best['update']}: tamiyo play {self._run_dir}")

    def _record(self, weights: WeightSet, played: list[dict[str, Any]]) -> None:
        returns = [episode["return"] for episode in played]
        mean, low, high = mean_interval(returns)
        progress = replace(
            self._made.get(weights.version, LearnerProgress()), version=weights.version, generation=weights.generation
        )
        record = {name: getattr(progress, name) for name in ("update", "env_steps", "elapsed_s")}
        record |= {"policy_version": weights.version, "episodes": len(returns)}
        record |= {"return_mean": mean, "return_low": low, "return_high": high}
        best, self._evaluated = self._best, weights.version
        try:
            if best is None or mean >= best["return_mean"]:  # of equal ones, the later policy was trained for longer
                save_policy(Checkpoint(progress, (), weights, {}), self._run_dir / BEST)
                self._best = record
            with (self._run_dir / EVALUATIONS).open("a+", encoding="utf-8") as file:
                file.seek(0)
                if file.read()[-1:] not in ("", "\n"):  # the last line was cut off, and must not swallow this one
                    file.write("\n")
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            self._note(f"the evaluation of update {progress.update} could not be written: {error}")
        if best is not None and mean > best["return_mean"]:
            found = (number(x, sign="-") for x in (mean, low, high))
            text = "update {}: mean return {} (95% interval {} to {}) of {} evaluation episodes, the best so far"
            self._note(text.format(progress.update, *found, len(returns)))


def _best_so_far(run_dir: Path) -> dict[str, Any] | None:
    """Return the line of the policy that is kept, which is the last of the best ones; None if there is none."""
    if not (run_dir / BEST).is_file() or not (run_dir / EVALUATIONS).is_file():
        return None
    records: list[dict[str, Any]] = []
    for line in (run_dir / EVALUATIONS).read_text(encoding="utf-8").splitlines():
        with suppress(ValueError, KeyError, TypeError):  # a line that was cut off
            record = json.loads(line)
            records.append(record | {"return_mean": float(record["return_mean"])})
    return max(reversed(records), key=lambda record: record["return_mean"], default=None)
