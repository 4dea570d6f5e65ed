"""`ProcessHandle`: Ray node and PID of a process, by which a hung one can be killed from anywhere in the cluster."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@dataclass(frozen=True)
class ProcessHandle:
    """Identifies a process in a Ray cluster."""

    node: str  # Ray node id
    pid: int
    created_s: float  # Unix time of its start, because PIDs are reused

    @classmethod
    def here(cls) -> ProcessHandle:
        """Return the handle of the calling process."""
        process = psutil.Process()
        return cls(ray.get_runtime_context().get_node_id(), process.pid, process.create_time())

    def kill(self, wait_s: float = 0.0) -> None:
        """Send SIGKILL, on another node from a task there, for which this waits at most `wait_s`.

        `ray.kill` alone does not end a process that is stopped (SIGSTOP).
        """
        if self.node == ray.get_runtime_context().get_node_id():
            kill_process(self.pid, self.created_s)
            return
        same_node = NodeAffinitySchedulingStrategy(self.node, soft=False)
        options: dict[str, Any] = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": same_node}
        task: Any = ray.remote(**options)(kill_process)
        ray.wait([task.remote(self.pid, self.created_s)], timeout=wait_s)


def kill_process(pid: int, created_s: float) -> None:
    """Kill a local process, unless its PID has been reused since `created_s` or it is gone."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        if abs(process.create_time() - created_s) < 1.0:
            process.kill()
