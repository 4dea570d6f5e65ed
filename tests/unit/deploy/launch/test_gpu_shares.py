"""Shares of GPUs: how many actors fit, what is left for the learner, and which hosts a GPU trains."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from actors.config import ActorsConfig, ConfigError, EnvConfig
from actors.errors import UserError
from actors.workers.placement import actor_capacity, gpu_room, gpu_shortage, learner_gpus, require_gpus
from deploy.config.schema import Config
from deploy.launch.process_settings import checked_spaces


def actors(share: float, count: Any = 2) -> ActorsConfig:
    return ActorsConfig(count=count, gpus_per_actor=share)


@pytest.mark.parametrize("share", [-0.5, 1.5, float("inf"), float("nan")])
def test_a_part_of_a_second_gpu_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match=r"gpus_per_actor.*whole number"):
        actors(share)


def by_brute_force(nodes: list[int], share: float, learner: float) -> int:
    """Put the learner on each node in turn, then fill GPU after GPU, or take whole ones."""
    rooms = []
    for place in [n for n, gpus in enumerate(nodes) if gpus]:
        free = [[1.0] * gpus for gpus in nodes]
        free[place][0] -= learner
        if share >= 1:
            rooms.append(sum(node.count(1.0) // int(share) for node in free))
        else:
            rooms.append(sum(int((gpu + 1e-9) / share) for node in free for gpu in node))
    return min(rooms, default=0)


@pytest.mark.parametrize("nodes", [[], [0, 0], [1], [2], [0, 3, 1], [4, 2], [8]])
def test_no_actor_has_parts_of_two_gpus(nodes: list[int]) -> None:
    for share, learner in itertools.product([0.1, 0.25, 0.3, 1 / 3, 0.5, 0.6, 1, 2, 3], [0.0, 0.25, 0.4, 1.0]):
        assert gpu_room(nodes, share, learner) == by_brute_force(nodes, share, learner)


@pytest.mark.parametrize(
    ("nodes", "share", "count", "learner", "grows"),
    [
        ([0], 0.25, 2, 0.0, 0.0),
        ([1], 0, 2, 1.0, 1.0),
        ([1, 1], 0.25, 4, 1.0, 1.0),
        ([1], 0.25, 2, 0.5, 0.5),
        ([1], 0.25, 4, 0.0, 0.25),  # the actors need it all
        ([1], 0.25, 5, 0.25, 0.25),  # they do not fit
        ([1], 0.25, "auto", 0.25, 0.25),  # three actors fit
        ([1], 0.3, "auto", 0.1, 0.1),
        ([2], 0.6, 3, 0.4, 0.4),  # two fit
        ([1], 1, 1, 0.0, 1.0),
        ([2, 2], 2, 2, 0.0, 1.0),
    ],
)
def test_the_learner_takes_what_actors_leave(
    nodes: list[int], share: float, count: Any, learner: float, grows: float
) -> None:
    own = actors(share, count)
    assert learner_gpus("auto", own, nodes, grows=False) == pytest.approx(learner)
    assert learner_gpus("auto", own, nodes, grows=True) == pytest.approx(grows)
    assert learner_gpus("cuda", own, nodes, grows=False) == pytest.approx(grows)
    assert learner_gpus("cpu", own, nodes, grows=False) == 0.0


def test_actors_that_do_not_fit_are_reported() -> None:
    for share, count, nodes in ((0.25, 5, [1]), (0.6, 3, [2]), (1, 2, [1]), (0.5, 1, [])):
        own = actors(share, count)
        learner = learner_gpus("auto", own, nodes, grows=False)
        with pytest.raises(UserError, match=rf"is {share}: . of {count} actors fit on .*\({sum(nodes)}\).*: lower"):
            require_gpus(own, nodes, learner)
    for share, count, nodes in ((0.25, 4, [1]), (0.6, 2, [2]), (1, 1, [1]), (0.25, "auto", [1]), (0, 64, [])):
        own = actors(share, count)
        require_gpus(own, nodes, learner_gpus("auto", own, nodes, grows=False))
    assert "2 of 3 actors fit on the GPUs that Ray has (2) beside the learner" in gpu_shortage(actors(0.6, 3), [2], 0.4)


def test_free_parts_of_gpus_are_not_added_up() -> None:
    """Two actors have 0.6 of a GPU each; the free 0.8 are in two parts."""
    room = gpu_room([2], 0.6) - 2
    assert actor_capacity({"CPU": 8.0, "GPU": 0.8}, 0.6, room) == 0
    assert actor_capacity({"CPU": 8.0, "GPU": 1.0}, 0.25, 4) == 4
    assert actor_capacity({"CPU": 3.0}, 0, 0) == 3
    assert actor_capacity({"CPU": 3.0}, 0.5, 4) == 0


def test_hosts_and_shares_must_fit_together() -> None:
    def check(share: float, *tasks: str, **env: Any) -> None:
        checked_spaces(Config(env=EnvConfig(tasks=tasks, **env), actors=actors(share)))

    both = ("spirals", "gratings")
    check(0.25, *both)
    check(0.25, "spirals", device="cuda")
    check(0.0, *both)
    with pytest.raises(ConfigError, match=r"env\.device is cuda, but .*gpus_per_actor is 0: give a share"):
        check(0.0, *both, device="cuda")
    for task, device in (("spirals", "auto"), ("gratings", "cpu")):
        with pytest.raises(ConfigError, match="no host would use a GPU"):
            check(0.25, task, device=device)
