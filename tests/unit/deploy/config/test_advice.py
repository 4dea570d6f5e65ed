"""Advice at the start of a run: about what the user chose, never about what a preset chose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.config.advice import advice
from deploy.config.schema import PRESETS
from deploy.config.yaml import from_yaml, overlay, to_yaml
from deploy.launch.process_settings import learner_settings

CART = {"id": "CartPole-v1"}  # 500 steps
LONG = {"id": "CartPole-v1", "kwargs": ["max_episode_steps=2000"], "max_segment_steps": 512}
ENDLESS = {"id": "CartPole-v1", "kwargs": ["max_episode_steps=-1"]}


@pytest.mark.parametrize(
    ("preset", "env"),
    [
        *((preset, {}) for preset in sorted(PRESETS)),
        ("tamiyo", {"learner": {"lr": 1e-4, "update_epochs": 1, "chunk_length": 32}}),  # which change little there
        *(("general", env) for env in ({"gym": CART}, {"gym": ENDLESS}, {"external": {"spaces": "s.json"}})),
    ],
)
def test_no_preset_gives_advice_about_itself(tmp_path: Path, preset: str, env: dict[str, Any]) -> None:
    """Not even where other settings differ, and a resumed run reads all of them from its file."""
    config = overlay(overlay(PRESETS[preset], env), {"learner": {"updates": 7}, "run": {"seed": 3}})
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert advice(config) == advice(from_yaml(tmp_path / "config.yaml")) == []


@pytest.mark.parametrize(
    ("preset", "settings", "words"),
    [
        ("tamiyo", {"learner": {"lr": 1e-3}}, "learner.lr is 0.001, higher than usual"),
        ("quick", {"learner": {"lr": 2e-3}}, "learner.lr is 0.002, higher than usual"),
        ("tamiyo", {"learner": {"update_epochs": 4}}, "learner.update_epochs is 4: a recurrent policy supports"),
        ("tamiyo", {"learner": {"chunk_length": 16}}, "episodes of up to 25 steps are cut into chunks of 16"),
        ("general", {"gym": CART, "learner": {"chunk_length": 32}}, "episodes of up to 500 steps are cut into chunks"),
        ("general", {"gym": ENDLESS, "learner": {"chunk_length": 32}}, "episodes of more than 32 steps are cut into"),
        ("general", {"gym": LONG}, "episodes of up to 2000 steps are cut into segments of 512"),
        ("general", {"gym": CART | {"max_segment_steps": 128}}, "episodes of up to 500 steps are cut into segments"),
        ("general", {"gym": CART, "learner": {"gamma": 1.0}}, "learner.gamma is 1, which suits the short episodes"),
    ],
)
def test_a_choice_of_the_user_gets_a_line_with_what_to_do(
    tmp_path: Path, preset: str, settings: dict[str, Any], words: str
) -> None:
    config = overlay(PRESETS[preset], settings)
    (line,) = advice(config)
    assert line.startswith(words)
    assert "try" in line or "use longer chunks" in line or "Raise it" in line or "preset general" in line
    assert learner_settings(config, tmp_path).advice == (line,)
    feedforward = advice(replace(config, policy=replace(config.policy, core="feedforward")))
    assert feedforward == ([line] if "gamma" in words else [])
