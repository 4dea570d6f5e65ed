"""The file of `--spaces`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from actors.env.gym.spaces import GymSpaces
from actors.errors import UserError
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
    ("raw", "words"),
    [
        ({"observation_size": 3}, "positive integers"),
        ({"observation_size": 0, "actions": [2]}, "positive integers"),
        ({"observation_size": 3, "continuous": [[2, -2]]}, "not in order"),
        ({"observation_size": 3, "continuous": [[1]]}, "does not describe spaces"),
        ({"observation_size": 3, "actions": [2], "kontinuous": []}, "unknown key kontinuous"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, raw: dict[str, Any], words: str) -> None:
    file = tmp_path / "spaces.json"
    file.write_text(json.dumps(raw))
    with pytest.raises(UserError, match=words) as caught:
        read_spaces(file)
    assert "\n" not in str(caught.value)
