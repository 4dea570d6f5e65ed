"""The file of `--spaces`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from actors.errors import UserError
from actors.gym.spaces import GymSpaces
from deploy.config.spaces_file import read_spaces


@pytest.mark.parametrize(
    ("raw", "env_id"),
    [
        ({"observation_size": 4, "actions": [2]}, "CartPole-v1"),
        ({"observation_size": 3, "continuous": [[-2, 2]]}, "Pendulum-v1"),
    ],
)
def test_the_spaces_are_those_of_the_environment(tmp_path: Path, raw: dict[str, Any], env_id: str) -> None:
    file = tmp_path / "spaces.json"
    file.write_text(json.dumps(raw))
    env = gymnasium.make(env_id)
    own = GymSpaces(env_id, env.observation_space, env.action_space).spaces
    assert read_spaces(file).hash == own.hash
    file.write_text(own.to_json())
    assert read_spaces(file) == own


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"observation_size": 3}',
        '{"observation_size": 0, "actions": [2]}',
        '{"observation_size": 3, "continuous": [[2, -2]]}',
        '{"observation_size": 3, "actions": [2], "kontinuous": []}',
        "[" * 100_000,
        '{"observation_size": 4, "actions": [1000000000]}',
        '{"observation_size": 4, "actions": [60000, 60000]}',
        '{"observation_size": 99999999999999, "actions": [2]}',
        '{"observation_size": 4, "continuous": [[NaN, 1]]}',
        '{"observation_size": 4, "continuous": [[-1e999, 1]]}',
        '{"observation_size": true, "actions": [2]}',
        '{"action": {"heads": []}}',
        "\udcff",
        " " * (2**24 + 1),
        "null",
    ],
    ids=lambda text: text[:45],
)
def test_any_content_is_refused_in_one_line_at_once(tmp_path: Path, text: str) -> None:
    file = tmp_path / "spaces.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    began = time.process_time()
    with pytest.raises(UserError) as caught:
        read_spaces(file)
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)
    assert time.process_time() - began < 1


def test_sizes_that_no_policy_can_have_are_refused_in_both_forms(tmp_path: Path) -> None:
    file = tmp_path / "spaces.json"
    file.write_text('{"observation_size": 4, "actions": [2]}')
    own = json.loads(read_spaces(file).to_json())
    for change in ({"base_size": 2**40}, {"base_size": -1}, {"base_size": 0}, {"slots": 2**40, "slot_size": 1}):
        file.write_text(json.dumps(own | change))
        with pytest.raises(UserError, match="features"):
            read_spaces(file)
    own["action"]["heads"][0]["choices"] = [str(n) for n in range(70_000)]
    own["action"]["relevance"] = [[True]] * 70_000
    file.write_text(json.dumps(own))
    with pytest.raises(UserError, match="more than 65536"):
        read_spaces(file)


def test_an_environment_with_a_billion_actions_is_refused_at_once() -> None:
    for action in (gymnasium.spaces.Discrete(10**9), gymnasium.spaces.MultiDiscrete([10**9, 2])):
        with pytest.raises(UserError, match="too large"):
            GymSpaces("Wide-v0", gymnasium.spaces.Box(0, 1, (3,)), action)
    with pytest.raises(UserError, match="too large"):
        GymSpaces("Wide-v0", gymnasium.spaces.Discrete(2**40), gymnasium.spaces.Discrete(2))
