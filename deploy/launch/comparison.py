"""Compare a trained policy with baselines on the same seeds. Training is complete by then: nothing here fails a run.

On seed hosts, the baselines replay hosts of the last fifth of the run. Episodes of a Gymnasium environment may be too
long to be played to their end, so there the newest policy plays too, on new seeds and up to the same step.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from actors.config import ActingConfig
from actors.errors import UserError, described
from actors.rng import Purpose, stream
from actors.types.episode import REPORTED_TASK, EndReason
from actors.workers.rollout_worker import PolicyName
from deploy.report.progress import clock
from learner.run.checkpoint import write_durably

LEAST_S = 60.0
SHARE = 0.1  # of the training's time that a comparison may take, if that is more than `LEAST_S`
Timelines = dict[str, list[dict[str, Any]]]  # by player


class Players(Protocol):
    """The actors of a run, which play for the comparison."""

    @property
    def size(self) -> int: ...

    def play(
        self, player: PolicyName, seeds: Sequence[int], deterministic: bool = False, stop: Callable[[], bool] = ...
    ) -> list[dict[str, Any]]: ...


@dataclass(frozen=True)
class Comparison:
    """The comparison at the end of a run; `episodes` 0 means none. `note` prints a line, `stop` ends it early."""

    run_dir: Path
    acting: ActingConfig
    seed: int
    episodes: int
    elapsed_s: float  # of the training
    note: Callable[[str], None]
    stop: Callable[[], bool]

    def run(self, pool: Players | None) -> None:
        """Compare, and write the results for the report, or why there are none. Without a pool, programs outside of
        the run play its environment."""
        if pool is None or not self.episodes:
            self.note("training is complete")
            why = "run.reference_episodes is 0" if pool else "programs outside of the run play its environment"
        else:
            try:
                why = self._compare(pool)
            except Exception as error:
                why = _line(error)
        if why:
            try:
                self._write("references.json", {"why_none": why})
            except OSError as error:
                self.note(f"no comparison: {why}, and this could not be written: {_line(error)}")

    def _compare(self, pool: Players) -> str:
        """Return why there is no comparison; empty if there is one."""
        hosts, limit_s = not self.acting.gym.id, max(LEAST_S, SHARE * self.elapsed_s)
        deadline = math.inf if hosts else time.monotonic() + limit_s
        players: tuple[PolicyName, ...] = ("random", "never_grow") if hosts else ("learned", "random")
        named = "the random policy and never-grow" if hosts else f"both policies for {clock(limit_s)} at most,"
        self.note(f"training is complete; playing {named} on the same seeds for comparison ...")
        chosen = self._last_rows() if hosts else self._drawn_rows()
        if not chosen:
            return "no whole episode was trained on"
        seeds = [int(row["seed"]) for row in chosen]
        played = self._play(pool, players, seeds, lambda: self.stop() or time.monotonic() > deadline)
        chosen = chosen[: len(played["random"])]
        if len(chosen) < 2:
            return "it was interrupted" if self.stop() else f"too few episodes were complete after {clock(limit_s)}"
        cut = [t["steps"] for timelines in played.values() for t in timelines if not t.get("ended", True)]
        returns = {name: [t["return"] for t in timelines] for name, timelines in played.items()}
        references = {
            "seeds": seeds[: len(chosen)],
            "tasks": [row["task_id"] for row in chosen],
            "cut_at": max(cut, default=0),
            **({"learned": [row["return"] for row in chosen]} if hosts else {}),
            **returns,
        }
        self._write("references.json", references)
        if hosts:
            try:
                self._draw_episode(pool, chosen)
            except Exception as error:
                self.note(f"no example episode: {_line(error)}")
        return ""

    def _play(
        self, pool: Players, players: Sequence[PolicyName], seeds: list[int], over: Callable[[], bool]
    ) -> Timelines:
        """Play the seeds in rounds of one episode per environment, as many as are complete before `over`."""
        played: Timelines = {name: [] for name in players}
        width = pool.size * self.acting.actors.envs_per_actor
        for start in range(0, len(seeds), width):
            try:
                part = {name: pool.play(name, seeds[start : start + width], stop=over) for name in players}
            except TimeoutError:
                break
            for name, timelines in part.items():
                played[name] += timelines
        return played

    def _drawn_rows(self) -> list[dict[str, Any]]:
        drawn = stream(self.seed, 0, Purpose.COMPARISON).integers(0, 2**31, self.episodes)
        return [{"seed": seed, "task_id": self.acting.gym.id} for seed in drawn.tolist()]

    def _last_rows(self) -> list[dict[str, Any]]:
        """Return some of the last fifth of the episodes, without segments and the runs of users' own models."""
        rows = [json.loads(line) for line in (self.run_dir / "episodes.jsonl").read_text().splitlines()]
        rows = [row for row in rows if row["end_reason"] != EndReason.CUT and row["task_id"] != REPORTED_TASK]
        fifth = rows[-max(1, len(rows) // 5) :]
        step = max(1, len(fifth) // self.episodes)
        return fifth[::-1][::step][: self.episodes][::-1]

    def _draw_episode(self, pool: Players, chosen: list[dict[str, Any]]) -> None:
        """Write the example episode of the report, from the task on which the policy grows most."""
        growth: dict[str, list[float]] = {}
        for row in chosen:
            growth.setdefault(row["task_id"], []).append(row["growth_ratio"])
        task = max(growth, key=lambda t: sum(growth[t]) / len(growth[t]))
        seed = next(int(row["seed"]) for row in reversed(chosen) if row["task_id"] == task)
        timeline = pool.play("learned", [seed], True, stop=self.stop)[0]
        never = pool.play("never_grow", [seed], stop=self.stop)[0]
        self._write("timeline.json", timeline | {"never_grow_accuracy": never["accuracy"]})

    def _write(self, name: str, content: dict[str, Any]) -> None:
        write_durably(self.run_dir / name, json.dumps(content).encode(), replace=True)


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) if isinstance(error, UserError) else described(error)
