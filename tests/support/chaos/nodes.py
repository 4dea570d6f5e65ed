"""A Ray cluster of three nodes in a separate process, controlled by commands on standard input.

    lose           kill the oldest node with a rollout worker
    join           add a node
    actors         number of Ray actors alive
    where CLASS    node of the actor of that class: its id, `head`, or an empty line
    process CLASS  process id of that actor
    places         number of nodes with rollout workers, and number of rollout workers

Each reply is one line that begins with `ANSWER`; Ray prints other lines. Argument: a port for `ray://` clients.
"""

from __future__ import annotations

import sys

import ray
from ray.cluster_utils import Cluster
from ray.util.state import list_actors

ANSWER = "> "


def answer(text: str) -> None:
    print(f"\n{ANSWER}{text}", flush=True)


def worker_nodes() -> list[str]:
    return [
        a.node_id
        for a in list_actors(filters=[("state", "=", "ALIVE"), ("class_name", "=", "RayRolloutWorker")], detail=True)
    ]


def places() -> str:
    nodes = worker_nodes()
    return f"{len(set(nodes))} {len(nodes)}"


def main() -> None:
    head = {"num_cpus": 2, "include_dashboard": True, "ray_client_server_port": int(sys.argv[1])}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    ray.init(cluster.address, namespace="tests", log_to_driver=False)
    answer(cluster.address)
    for line in sys.stdin:
        match line.split():
            case ["lose"]:
                used = worker_nodes()
                cluster.remove_node(next(n for n in cluster.worker_nodes if n.node_id in used), allow_graceful=False)
                answer("done")
            case ["join"]:
                cluster.add_node(num_cpus=1)
                answer("done")
            case ["actors"]:
                answer(str(len(list_actors(filters=[("state", "=", "ALIVE")]))))
            case ["where", kind]:
                answer(where(kind, cluster.head_node.node_id))
            case ["process", kind]:
                found = list_actors(filters=[("state", "=", "ALIVE"), ("class_name", "=", kind)], detail=True)
                answer(str(found[0].pid) if found else "")
            case ["places"]:
                answer(places())
    ray.shutdown()
    cluster.shutdown()


def where(kind: str, head: str) -> str:
    found = list_actors(filters=[("state", "=", "ALIVE"), ("class_name", "=", kind)], detail=True)
    return "" if not found else "head" if found[0].node_id == head else str(found[0].node_id)


if __name__ == "__main__":
    main()
