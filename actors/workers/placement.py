"""How many actors fit on the GPUs of a cluster, and what the learner reserves beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor

import ray

from actors.config import ActorsConfig
from actors.errors import UserError

SLACK = 1e-6  # Ray counts resources in steps of 1e-4


def node_gpus() -> list[int]:
    """Return the number of GPUs of each living node of the cluster."""
    return [int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def gpu_room(nodes: Sequence[int], share: float, learner: float = 0.0) -> int:
    """Return how many actors with this share fit on the GPUs of all nodes beside a learner, wherever Ray places it.

    Actors share a GPU, but none has parts of two; from 1 on, a share is a number of whole GPUs of one node.
    """

    def room(gpus: int, learner: float) -> int:
        if share >= 1:
            return int((gpus - bool(learner)) / share + SLACK)
        return (gpus - bool(learner)) * floor(1 / share + SLACK) + floor((1 - learner) / share + SLACK) * bool(learner)

    lost = max((room(gpus, 0.0) - room(gpus, learner) for gpus in nodes if gpus), default=0)
    return sum(room(gpus, 0.0) for gpus in nodes) - lost


def learner_gpus(device: str, actors: ActorsConfig, nodes: Sequence[int], grows: bool) -> float:
    """Return what the learner reserves: a whole GPU where the actors fit on the others, and otherwise what as many of
    them as possible leave of one. With device `auto` it is 0 if the actors need all GPUs of a cluster that does not
    grow."""
    total, share = sum(nodes), actors.gpus_per_actor
    if device == "cpu" or not total:
        return 0.0
    reserved = 1.0
    if 0 < share < 1 and gpu_room(nodes, share, reserved) < actors.at_least:
        on_one = gpu_room([1], share)
        beside = on_one if 1 - on_one * share > SLACK else on_one - 1
        if isinstance(actors.count, int):
            beside = min(beside, max(0, actors.count - (total - 1) * on_one))
        reserved = round(1 - beside * share, 4)
    needed = gpu_shortage(actors, nodes, reserved) and not gpu_shortage(actors, nodes, 0.0)
    return 0.0 if needed and device == "auto" and not grows else reserved


def gpu_shortage(actors: ActorsConfig, nodes: Sequence[int], learner: float) -> str:
    """Return what is wrong if the first actors do not fit on the GPUs beside the learner; otherwise ''."""
    share = actors.gpus_per_actor
    room = gpu_room(nodes, share, learner) if share else actors.at_least
    if room >= actors.at_least:
        return ""
    return (
        f"actors.gpus_per_actor is {share:g}: {room} of {actors.at_least} actors fit on the GPUs that Ray has "
        f"({sum(nodes)})" + " beside the learner" * bool(learner)
    )


def require_gpus(actors: ActorsConfig, nodes: Sequence[int], learner: float) -> None:
    """Raise `UserError` if the actors do not fit on the GPUs of a cluster that does not grow."""
    if shortage := gpu_shortage(actors, nodes, learner):
        raise UserError(f"{shortage}: lower actors.gpus_per_actor or actors.count")


def actor_capacity(free: Mapping[str, float], share: float, room: int) -> int:
    """Return how many actors fit into the free resources: one CPU and a share of a GPU each, and at most `room` more on
    GPUs, whose free parts may be too small."""
    capacity = free.get("CPU", 0.0)
    if share:
        capacity = min(capacity, free.get("GPU", 0.0) / share, room)
    return max(0, int(capacity + SLACK))
