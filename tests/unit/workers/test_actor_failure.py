"""What is kept of an error in an actor: its own frames, the whole traceback, in a form that any process can read."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest

from actors.config import GymConfig
from actors.gym.make import make_vector_env
from actors.workers.faults.actor_reports import ActorFailure
from tests.support.env.gym_envs import Scripted


class OddError(Exception):
    """Cannot be unpickled."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{what}\nat {where}")


def fail(error: BaseException) -> None:
    raise error


class Faulty(Scripted):
    def step(self, action: Any) -> Any:
        return self.turn({"left": 0})

    def turn(self, table: dict[str, int]) -> Any:
        return table["rigth"]


gymnasium.register("tests/Faulty-v0", entry_point=Faulty)


def raised(call: Callable[[], Any]) -> ActorFailure:
    try:
        call()
    except BaseException as error:
        return ActorFailure.from_error(error)
    pytest.fail("nothing was raised")


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_the_frames_are_those_of_the_environment(vectorization: Any) -> None:
    config = GymConfig(id="tests/Faulty-v0", vectorization=vectorization)
    env = make_vector_env(config, 2)
    env.reset(seed=[1, 2])
    failure = raised(lambda: env.step([0, 0]))
    env.close()
    assert str(failure) == "KeyError: 'rigth'"
    lines = failure.frames.splitlines()
    assert [line.split(", in ")[1] for line in lines if ", in " in line][-2:] == ["step", "turn"]
    assert all(__file__ in line for line in lines if line.lstrip().startswith("File"))
    assert failure.frames in failure.trace
    assert "gymnasium" in failure.trace


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OddError("home", "lost"), "OddError: lost at home"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_it_survives_where_the_error_does_not_and_no_message_is_empty(error: BaseException, message: str) -> None:
    failure = pickle.loads(pickle.dumps(raised(lambda: fail(error))))
    assert str(failure) == message
    assert "in fail" in failure.frames
