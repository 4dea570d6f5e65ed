"""Making Gymnasium environments: errors, conversion of observations and actions, and masks."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.spaces.utils import flatten
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TransformReward
from gymnasium.wrappers.vector import TransformReward as TransformRewards
from numpy.typing import NDArray

from actors.config import ConfigError, GymConfig
from actors.config.gym import make_arguments
from actors.errors import UserError
from actors.gym.fleet import GymFleet
from actors.gym.make import gym_converter, make_vector_env
from actors.gym.spaces import GymSpaces
from actors.gym.unified import UnifiedEnv
from actors.types.actions import independent_spec
from deploy.cli import main
from tests.support.env import gym_envs


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"id": "tests/Whole-v0"}, "takes Box actions of whole numbers: only Discrete, MultiDiscrete, Box of floats"),
        ({"id": "tests/Endless-v0", "squash": True}, "gym.squash needs finite bounds"),
        ({"id": "CartPole-v9"}, "there is no Gymnasium environment 'CartPole-v9'; did you mean CartPole-v1?"),
        ({"id": "cartpole-V1"}, "did you mean CartPole-v1?"),
        ({"id": "Qzxw"}, "to import the package that registers it, write mypkg:MyEnv-v0"),
        ({"id": "no_such_package:A-v0"}, "cannot import 'no_such_package' of gym.id no_such_package:A-v0"),
        ({"id": "CartPole-v1", "kwargs": ("color=red",)}, "unexpected keyword argument 'color'"),
        ({"id": "CartPole-v1", "wrappers": ("gymnasium.wrappers:Nothing",)}, "there is no gymnasium.wrappers:Nothing"),
        ({"id": "tests/Scripted-v0", "vectorization": "own"}, "doesn't have a vector entry point"),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(config: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as refusal:
        gym_converter(GymConfig(**config))
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "config",
    [
        *({"id": "x", "kwargs": (pair,)} for pair in ("a", "=1")),
        {"id": "x", "wrappers": ("NoModule",)},
        {"id": "x", "wrappers": ("a:B",), "vectorization": "own"},
        {"id": "x", "max_segment_steps": 0},
    ],
)
def test_invalid_settings_are_rejected(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        GymConfig(**config)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((word, value) for value, words in ((True, "True true"), (False, "False false")) for word in words.split()),
        *((word, None) for word in ("None", "null")),
        *(("1", 1), ("-1.5e-3", -0.0015), ("1_000", 1000), ("inf", float("inf")), ("-inf", float("-inf"))),
        *(("[1, 2]", [1, 2]), ("(1, 'a')", (1, "a")), ("{'a': True}", {"a": True}), ('"yes"', "yes"), ("'1,5'", "1,5")),
        *((text, text) for text in ("text", "8x8", "127.0.0.1", "2024-01-01", "levels/a.json", "a=b", "")),
    ],
)
def test_arguments_are_what_they_look_like_in_python_and_json(text: str, value: object) -> None:
    (parsed,) = make_arguments((f"name={text}",)).values()
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize("text", ["FALSE", "none", "Off", "1,5", "007", "[1, 2", "{a: 1}", "'a", "np.inf", "Box(0, 1)"])
def test_an_argument_that_only_looks_like_a_literal_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write it as in Python or JSON, such as name=False"):
        GymConfig(id="x", kwargs=(f"name={text}",))


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (FileNotFoundError(2, "No such file", "level.json"), "FileNotFoundError: [Errno 2] No such file: 'level.json'"),
        (KeyError("TOKEN"), "KeyError: 'TOKEN'"),
        (ValueError("size\nis 8"), "ValueError: size is 8"),
        (SystemExit("no license"), "it called sys.exit('no license')"),
    ],
)
def test_an_error_of_a_constructor_is_named_with_its_place(
    raised: BaseException, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object) -> None:
        raise raised

    monkeypatch.setattr(gym_envs.Scripted, "__init__", fail)
    place = f"({__file__}, line {fail.__code__.co_firstlineno + 1})"
    assert main(["train", "--env", "tests/Scripted-v0"]) == 2
    assert capsys.readouterr().err == f"tamiyo: error: cannot make tests/Scripted-v0: {words} {place}\n"


def test_arguments_and_wrappers_reach_each_environment() -> None:
    kwargs, wrappers = ("sizes=[2, 3]", "masks=info"), ("gymnasium.wrappers:TimeAwareObservation",)
    env = make_vector_env(GymConfig(id="tests/Scripted-v0", kwargs=kwargs, max_segment_steps=9), 2)
    assert env.single_action_space == spaces.MultiDiscrete([2, 3])
    spec = gym_converter(GymConfig(id="CartPole-v1", wrappers=wrappers)).spaces
    assert spec.obs_size == 5
    assert spec.action == independent_spec([2])


def test_nested_observations_are_flattened_as_by_gymnasium() -> None:
    space = spaces.Dict(
        picture=spaces.Box(0, 255, (2, 2), np.uint8),
        kind=spaces.Discrete(3, start=5),
        flags=spaces.MultiBinary(2),
        pair=spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.Box(-1, 1, (1,), np.float64))),
    )
    space.seed(3)
    own = GymSpaces("mixed", space, spaces.Discrete(2))
    rows = [space.sample() for _ in range(4)]
    batch = gymnasium.vector.utils.concatenate(space, rows, gymnasium.vector.utils.create_empty_array(space, n=4))
    expected = np.stack([flatten(space, row) for row in rows]).astype(np.float32)
    assert own.spaces.obs_size == expected.shape[1] == 4 + 3 + 2 + 5 + 1
    assert np.array_equal(own.flat_batch(batch, 4), expected)
    assert np.array_equal(own.flat_obs(rows[1]), expected[1])


def test_spaces_without_a_fixed_size_are_rejected() -> None:
    with pytest.raises(UserError, match="is Sequence, which has no fixed size"):
        GymSpaces("odd", spaces.Sequence(spaces.Discrete(2)), spaces.Discrete(2))


@pytest.mark.parametrize(
    ("space", "chosen", "expected"),
    [
        (spaces.Discrete(3, start=-1), [[0], [2]], [-1, 1]),
        (spaces.MultiDiscrete([2, 3]), [[0, 2], [1, 0]], [[0, 2], [1, 0]]),
        (spaces.MultiDiscrete([2, 3], start=[10, -3]), [[1, 2], [0, 0]], [[11, -1], [10, -3]]),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), [[1, 2, 3, 4], [0, 0, 0, 0]], [[[1, 2], [3, 4]], [[0, 0], [0, 0]]]),
    ],
)
def test_actions_are_converted_to_the_environments_own_space(
    space: Any, chosen: list[Any], expected: list[Any]
) -> None:
    own = GymSpaces("acts", spaces.Discrete(2), space)
    actions = own.env_actions(np.array(chosen))
    assert np.array_equal(actions, expected)
    assert gymnasium.vector.utils.batch_space(space, 2).contains(actions)


def fleet_of(env_id: str, count: int, **settings: Any) -> GymFleet:
    return GymFleet(env_id, make_vector_env(GymConfig(id=env_id, **settings), count), int)


def paid(reward: Any) -> float:
    """Return what our wrapper makes of a reward."""
    env = UnifiedEnv(TransformReward(gym_envs.Scripted(), lambda _: reward), "paying")
    env.reset(seed=0)
    return env.step(0)[1]


@pytest.mark.parametrize(
    ("reward", "value"), [(np.array([1.5]), 1.5), (np.array(1.5), 1.5), (torch.tensor([1.5]), 1.5), (True, 1), (2, 2)]
)
def test_a_reward_is_one_number_in_any_form(reward: Any, value: float) -> None:
    assert paid(reward) == value
    assert type(paid(reward)) is float


@pytest.mark.parametrize("reward", [None, np.ones(2), torch.ones(3), [1.0]])
def test_a_reward_that_is_not_one_number_is_refused(reward: Any) -> None:
    with pytest.raises(UserError, match=r"paying gave the reward .*: give one number"):
        paid(reward)


def rewards_of(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return the rewards of a fleet whose vector environment gives rewards of this shape."""
    env = SyncVectorEnv([gym_envs.Scripted] * 3, autoreset_mode=AutoresetMode.DISABLED)
    fleet = GymFleet("column", TransformRewards(env, lambda _: np.ones(shape)), int)
    fleet.start()
    return fleet.step(np.zeros((3, 1), dtype=np.int64)).outcome.rewards


def test_a_vector_environment_may_give_a_column_of_rewards() -> None:
    assert rewards_of((3, 1)).shape == (3,)
    with pytest.raises(UserError, match=r"column gave rewards of shape \[5\]: give shape \[3\]"):
        rewards_of((5,))


class Recorded(gym_envs.Scripted):
    """Notes which of its instances were closed; those of some numbers cannot be made, or cannot be closed."""

    made = 0
    closed: ClassVar[set[int]] = set()

    def __init__(self, breaks: int = -1, close_breaks: int = -1) -> None:
        super().__init__()
        self.number, self.close_breaks = Recorded.made, close_breaks
        if self.number == breaks:
            raise ValueError("no display")
        Recorded.made += 1

    def close(self) -> None:
        self.closed.add(self.number)
        if self.number == self.close_breaks:
            raise OSError("the simulator is gone")


gymnasium.register("tests/Recorded-v0", entry_point=Recorded)


def test_environments_are_closed_if_one_cannot_be_made_or_closed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exception, match="no display"):
        fleet_of("tests/Recorded-v0", 4, kwargs=("breaks=2",))
    assert Recorded.closed == {0, 1}
    fleet_of("tests/Recorded-v0", 4, kwargs=("close_breaks=3",)).close()
    assert Recorded.closed == set(range(6))
    assert "OSError: the simulator is gone" in capsys.readouterr().err


def test_the_default_dtype_of_an_environment_is_its_own() -> None:
    class Double(gym_envs.Scripted):
        def __init__(self) -> None:
            super().__init__()
            torch.set_default_dtype(torch.float64)

        def step(self, action: Any) -> Any:
            assert torch.zeros(1).dtype is torch.float64
            return super().step(action)

    gymnasium.register("tests/Double-v0", entry_point=Double)
    fleet = fleet_of("tests/Double-v0", 2)
    assert torch.get_default_dtype() is torch.float32
    fleet.start()
    fleet.step(np.zeros((2, 1), dtype=np.int64))
    fleet.close()
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize("vectorization", ["async", "own"])
def test_other_vectorization_modes_run(vectorization: str) -> None:
    fleet = fleet_of("CartPole-v1", 2, vectorization=vectorization)
    fleet.start()
    shown = [fleet.step(np.ones((2, 1), dtype=np.int64)) for _ in range(40)]
    fleet.env.close()
    assert shown[-1].current.obs.shape == (2, 4)
    assert sum(int(step.outcome.terminated.sum()) for step in shown) >= 4  # pushing one way falls within ten steps
