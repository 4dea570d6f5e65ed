"""`ProcessHandle`: node and PID of a process, so that a hung one can be killed from elsewhere in the cluster."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@dataclass(frozen=True)
class ProcessHandle:
    node: str  # Ray's id
    pid: int
    created_s: float  # since 1970: numbers of processes are used again

    @classmethod
    def here(cls) -> ProcessHandle:
        process = psutil.Process()
        return cls(ray.get_runtime_context().get_node_id(), process.pid, process.create_time())

    def kill(self) -> None:
        """By a task on its node, not waited for. Ray asks a process to end, which one that is stopped does not hear."""
        there = NodeAffinitySchedulingStrategy(self.node, soft=False)
        options: dict[str, Any] = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": there}
        task: Any = ray.remote(**options)(end_process)
        task.remote(self.pid, self.created_s)


def end_process(pid: int, created_s: float) -> None:
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        if abs(process.create_time() - created_s) < 1.0:
            process.kill()
