"""Looks at processes and their children: memory of their own, open descriptors, threads."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import psutil

from benchmarks.soaking.trend import Trend, trend

RAY_TITLES = {"LearnerService": "learner", "RayRolloutWorker": "actor", "IDLE": "Ray worker without work"}


@dataclass
class Trace:
    """One process, look by look."""

    pid: int
    name: str = ""  # as last seen: Ray renames its workers
    times_s: list[float] = field(default_factory=list)
    uss_bytes: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def since(self, start_s: float) -> Trace:
        first = int(np.searchsorted(self.times_s, start_s))
        kept = (getattr(self, name)[first:] for name in ("times_s", "uss_bytes", "descriptors", "threads"))
        return Trace(self.pid, self.name, *kept)

    @property
    def mib_per_h(self) -> Trend:
        return trend(self.times_s, [b / 2**20 for b in self.uss_bytes])


class Watch:
    """`look` appends to the trace of every process that lives; `roots` name the first ones, `ours` or Ray's."""

    def __init__(self, roots: dict[int, str]) -> None:
        self._roots = roots
        self.traces: dict[tuple[int, float], Trace] = {}

    def look(self) -> None:
        for pid, root in self._roots.items():
            top = psutil.Process(pid)
            for process in (top, *top.children(recursive=True)):
                self._look_at(process, root if process.pid == pid else "")

    def _look_at(self, process: psutil.Process, root: str) -> None:
        try:
            with process.oneshot():
                key = (process.pid, process.create_time())
                name = root or name_of(process.name(), process.cmdline())
                uss, threads = process.memory_full_info().uss, process.num_threads()
                descriptors = process.num_fds()
        except psutil.Error:  # it ended meanwhile
            return
        trace = self.traces.setdefault(key, Trace(process.pid))
        trace.name = name
        trace.times_s.append(time.monotonic())
        trace.uss_bytes.append(uss)
        trace.descriptors.append(descriptors)
        trace.threads.append(threads)

    def throughout(self, start_s: float) -> list[Trace]:
        """What lived from `start_s` up to the last look, each with a name of its own, cut to that time."""
        end_s = max(t.times_s[-1] for t in self.traces.values())
        pace_s = _pace_s(list(self.traces.values()))
        lived = [
            t for t in self.traces.values() if t.times_s[0] <= start_s + pace_s and t.times_s[-1] >= end_s - pace_s
        ]
        found = [t.since(start_s) for t in sorted(lived, key=lambda t: (t.name, t.times_s[0], t.pid))]
        for name in {t.name for t in found}:
            alike = [t for t in found if t.name == name]
            for i, t in enumerate(alike):
                t.name = f"{name} {i}" if len(alike) > 1 else name
        return found

    def came_and_went(self, start_s: float) -> int:
        """How many were there after `start_s`, but not throughout."""
        seen = sum(t.times_s[-1] >= start_s for t in self.traces.values())
        return seen - len(self.throughout(start_s))


def name_of(name: str, command: Sequence[str]) -> str:
    """Short, for people."""
    line = " ".join(command[:3])
    if title := re.match(r"ray::(\w+)", line):
        return RAY_TITLES.get(title[1], f"Ray's {title[1]}")
    scripts = [part for part in command if part.endswith(".py")]
    if scripts:
        path = scripts[0].split("/")
        return f"Ray's {' '.join(path[-2:]).removesuffix('.py')}"
    return f"Ray's {name}" if name in ("raylet", "gcs_server") else name


def _pace_s(traces: Sequence[Trace]) -> float:
    """Twice the time between two looks."""
    longest = max(traces, key=lambda t: len(t.times_s))
    return 2.0 * float(np.median(np.diff(longest.times_s))) if len(longest.times_s) > 1 else 0.0
