"""Compare a trained policy with baselines on the same new seeds. Training is complete by then: nothing fails a run.

All of them play in the actors' environments, and up to the same step, because episodes of a Gymnasium environment may
be too long to be played to their end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.errors import UserError, described
from actors.rng import Purpose, stream
from actors.workers.rollout_worker import PolicyName
from deploy.config.schema import Config
from deploy.report.progress import clock
from learner.run.checkpoint import write_durably

LEAST_S = 60.0
SHARE = 0.1  # of the training's time that a comparison may take, if that is more than `LEAST_S`
Stop = Callable[[], bool]
Play = Callable[[PolicyName, Sequence[int], bool, Stop], list[dict[str, Any]]]
"""Plays an episode of each seed, greedily if the third argument is true; may raise `TimeoutError` if it is to stop."""


@dataclass(frozen=True)
class Comparison:
    """The comparison at the end of a run. `note` prints a line, `stop` ends it early."""

    run_dir: Path
    config: Config
    elapsed_s: float  # of the training
    note: Callable[[str], None]
    stop: Stop
    play: Play | None  # by the actors of the run; None if programs outside of the run play its environment
    num_actors: int

    def run(self) -> None:
        """Compare, and write the results for the report, or why there are none."""
        why = "programs outside of the run play its environment" if self.play is None else ""
        why = why or ("" if self.config.run.reference_episodes else "run.reference_episodes is 0")
        if self.play is None or why:
            self.note("training is complete")
        else:
            try:
                why = self._compare(self.play)
            except Exception as error:
                why = _line(error)
        if why:
            try:
                self._write("references.json", {"why_none": why})
            except OSError as error:
                self.note(f"no comparison: {why}, and this could not be written: {_line(error)}")

    def _compare(self, play: Play) -> str:
        """Return why there is no comparison; empty if there is one."""
        env_id, run, limit_s = self.config.gym.id, self.config.run, max(LEAST_S, SHARE * self.elapsed_s)
        deadline = time.monotonic() + limit_s
        players: tuple[PolicyName, ...] = ("learned", "random") if env_id else ("learned", "random", "never_grow")
        self.note(f"training is complete; comparing {', '.join(players)} for {clock(limit_s)} at most ...")
        seeds = stream(run.seed, 0, Purpose.COMPARISON).integers(0, 2**31, run.reference_episodes).tolist()
        played: dict[str, list[dict[str, Any]]] = {name: [] for name in players}
        width = self.num_actors * self.config.actors.envs_per_actor

        def over() -> bool:
            return self.stop() or time.monotonic() > deadline

        for start in range(0, len(seeds), width):  # rounds of an episode per environment, as many as are complete
            if over():
                break
            try:
                part = {name: play(name, seeds[start : start + width], False, over) for name in players}
            except TimeoutError:
                break
            for name, timelines in part.items():
                played[name] += timelines
        seeds = seeds[: len(played["random"])]
        if len(seeds) < 2:
            return "it was interrupted" if self.stop() else f"too few episodes were complete after {clock(limit_s)}"
        cut = [t["steps"] for timelines in played.values() for t in timelines if not t.get("ended", True)]
        references = {
            "seeds": seeds,
            "tasks": [env_id or t["task"] for t in played["random"]],
            "cut_at": max(cut, default=0),
            **{name: [t["return"] for t in timelines] for name, timelines in played.items()},
        }
        self._write("references.json", references)
        if not env_id:
            try:
                self._draw_episode(play, played["learned"])
            except Exception as error:
                self.note(f"no example episode: {_line(error)}")
        return ""

    def _draw_episode(self, play: Play, played: list[dict[str, Any]]) -> None:
        """Write the example episode of the report: the one in which the policy grew most, played greedily."""
        seed = int(max(played, key=lambda timeline: timeline["doublings"][-1])["seed"])
        (timeline,) = play("learned", [seed], True, self.stop)
        (never,) = play("never_grow", [seed], False, self.stop)
        self._write("timeline.json", timeline | {"never_grow_accuracy": never["accuracy"]})

    def _write(self, name: str, content: dict[str, Any]) -> None:
        write_durably(self.run_dir / name, json.dumps(content).encode(), replace=True)


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) if isinstance(error, UserError) else described(error)
