"""A Ray cluster of three nodes in a process of its own, which does as it is told on standard input.

`lose` kills the oldest worker node, `join` adds one, `actors` counts those alive. Each answer is one line that begins
with `ANSWER`; Ray says more.
"""

from __future__ import annotations

import sys

import ray
from ray.cluster_utils import Cluster
from ray.util.state import list_actors

ANSWER = "> "


def answer(text: str) -> None:
    print(f"\n{ANSWER}{text}", flush=True)


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": True})
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    ray.init(cluster.address, namespace="tests", log_to_driver=False)
    answer(cluster.address)
    for line in sys.stdin:
        if line.strip() == "lose":
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        elif line.strip() == "join":
            cluster.add_node(num_cpus=1)
        answer(str(len(list_actors(filters=[("state", "=", "ALIVE")]))) if line.strip() == "actors" else "done")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
