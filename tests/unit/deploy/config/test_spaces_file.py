"""The file of `--spaces`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space

from actors.errors import UserError
from actors.gym.spaces import GymSpaces
from deploy.config.spaces_file import read_spaces


@pytest.mark.parametrize(
    ("text", "env_id"),
    [
        ('{"observation_size": 4, "actions": [2]}', "CartPole-v1"),
        ('{"observation_size": 3, "continuous": [[-2, 2]]}', "Pendulum-v1"),
    ],
)
def test_the_spaces_are_those_of_the_environment(tmp_path: Path, text: str, env_id: str) -> None:
    file, env = tmp_path / "spaces.json", gymnasium.make(env_id)
    file.write_text(text)
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
        '{"observation_size": 4, "actions": [60000, 60000]}',
        '{"observation_size": 99999999999999, "actions": [2]}',
        '{"observation_size": 4, "continuous": [[NaN, 1]]}',
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
    (head,) = own["action"]["heads"]
    wide = own["action"] | {
        "heads": [head | {"choices": [str(n) for n in range(70_000)]}],
        "relevance": [[True]] * 70_000,
    }
    for change, words in (
        ({"base_size": 2**40}, "features"),
        ({"base_size": 0}, "features"),
        ({"slots": 2**40, "slot_size": 1}, "features"),
        ({"action": wide}, "more than 65536"),
    ):
        file.write_text(json.dumps(own | change))
        with pytest.raises(UserError, match=words):
            read_spaces(file)


@pytest.mark.parametrize(
    ("seen", "action"),
    [(Box(0, 1, (3,)), Discrete(10**9)), (Box(0, 1, (3,)), MultiDiscrete([10**9, 2])), (Discrete(2**40), Discrete(2))],
)
def test_an_environment_with_a_billion_actions_is_refused_at_once(seen: Space[Any], action: Space[Any]) -> None:
    with pytest.raises(UserError, match="too large"):
        GymSpaces("Wide-v0", seen, action)
