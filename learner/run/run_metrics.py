"""The metrics that a run records for each update and for each episode that it was trained on."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from actors.metrics.run_status import run_status
from actors.transport.base import Unreachable
from actors.transport.ledger import Ledger
from actors.transport.redis import Transport
from actors.types.episode import EndReason, Episode
from learner.run.run_state import RunState

SEED_HOST_FIGURES = ("final_accuracy", "doublings", "compute_doublings")  # telemetry of seed hosts that has metrics
PRICES = ("points_per_doubling", "points_per_compute_doubling")
EPISODE_FIGURES = (*SEED_HOST_FIGURES, "host_width", *PRICES)  # and what episodes.jsonl records
STAGE_PREFIX = "stage/"  # telemetry of seed hosts: the share of each stage
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
)
"""The metrics of an update that are also reported to the store."""


class RunMetrics:
    """Metrics of an update other than its losses."""

    def __init__(self, transport: Transport, state: RunState) -> None:
        self._transport, self._state = transport, state
        self._reported_s: float | None = None  # when the update before was
        self._missing = 0  # episodes that the user knows of

    def of_update(self, episodes: Sequence[Episode], wait_s: float, start: float) -> dict[str, float]:
        """Return counters, times, the state of the store, and means over the episodes that ended in the batch.

        The update's cycle began at `start` (monotonic) and waited `wait_s`. Its episodes are not acknowledged yet; the
        times of saving and publishing are those of the update before.
        """
        seen = self._state.with_store(lambda: (self._transport.ledger(), self._transport.health()))
        ledger, state, p = seen[0] if seen else Ledger(), self._state, self._state.progress
        if ledger.missing > self._missing:
            state.notes.append(
                f"{ledger.missing - self._missing} episodes were removed from the queue by something other than Tamiyo "
                "(counted as `missing`); training continues: find out who can write to the store, and renew the "
                "password of the user `actor`"
            )
            self._missing = ledger.missing
        since_s, self._reported_s = self._reported_s or start, time.monotonic()
        metrics = {
            "update": p.update,
            "policy_version": p.version,
            "elapsed_s": p.elapsed_s,
            "episodes_per_s": len(episodes) / (self._reported_s - since_s),
            "env_steps": p.env_steps,
            "episodes_trained": p.episodes_trained,
            **_means(episodes),
            "queue_depth": ledger.queued,
            "dropped_stale": p.dropped_stale + state.intake.dropped_stale,
            "dead_lettered": ledger.dead_lettered,
            "wait_s": wait_s,
            "checkpoint_s": state.checkpoint_s,
            "publish_s": state.publish_s,
        }
        return metrics | (run_status(*seen) if seen else {})

    def report_health(self, metrics: dict[str, float], cycle_s: float) -> None:
        """Report the figures that `tamiyo status` shows, unless the store is unreachable."""
        intake = self._state.intake
        starved_s, intake.starved_s = intake.starved_s, 0.0
        health = {name: metrics[name] for name in HEALTH if name in metrics}
        health |= {"cycle_s": cycle_s, "starved_s": starved_s, "publish_s": self._state.publish_s}
        health["max_policy_lag"] = intake.max_policy_lag
        with suppress(Unreachable):
            self._transport.report_learner(health)


def episode_record(episode: Episode) -> dict[str, Any]:
    """Return the line of an episode in episodes.jsonl."""
    return {
        "episode_id": episode.episode_id,
        "task_id": episode.task_id,
        "seed": episode.seed,
        "policy_version": episode.oldest_version,
        "return": _objective(episode),
        "steps": len(episode),
        "end_reason": str(episode.end_reason),
        **{k: episode.telemetry[k] for k in EPISODE_FIGURES if k in episode.telemetry},
    }


def _objective(episode: Episode) -> float:
    """Return J if the environment reports it, or else the return; of the whole episode if this is a segment."""
    whole = episode.telemetry.get("episode_return", episode.undiscounted_return)
    return episode.telemetry.get("objective", whole)


def _means(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the mean reward, and means over the episodes that ended: the sum of a segment's rewards is no return."""
    steps = sum(len(e) for e in episodes)
    reward = {"reward_mean": sum(e.undiscounted_return for e in episodes) / steps}
    ended = [e for e in episodes if e.end_reason is not EndReason.CUT]
    if not ended:
        return reward
    returns = [_objective(e) for e in ended]
    interval = t_interval(returns)
    reported = set.intersection(*(set(e.telemetry) for e in ended))
    names = {key: key for key in (*SEED_HOST_FIGURES, *sorted(k for k in reported if k.startswith(STAGE_PREFIX)))}
    names["panic"] = "panic_share"
    figures = {name: float(np.mean([e.telemetry[k] for e in ended])) for k, name in names.items() if k in reported}
    return reward | {
        "return_mean": float(np.mean(returns)),
        "return_std": float(np.std(returns)),
        **(dict(zip(("return_low", "return_high"), interval, strict=True)) if interval else {}),
        "paid_mean": float(np.mean([e.telemetry.get("episode_return", e.undiscounted_return) for e in ended])),
        **figures,
        "episode_steps": float(np.mean([e.telemetry.get("episode_steps", len(e)) for e in ended])),
    }


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return Student's 95% interval of the mean of `[n]` independent values; None for fewer than two. It is cheap
    enough for every update; reports use the bootstrap of `deploy/report/statistics.py`."""
    from scipy.special import stdtrit  # takes an eighth of a second, for which the start of a run would wait

    n = len(values)
    if n < 2:
        return None
    x = np.asarray(values, dtype=np.float64)
    half = float(stdtrit(n - 1, 0.975)) * float(x.std(ddof=1)) / math.sqrt(n)
    return float(x.mean()) - half, float(x.mean()) + half
