"""The policy that comes with the package: it is found, small, and fits the current environment."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

import tamiyo
from actors.env.env import seed_spaces
from actors.growth.policy_advisor import find_policy
from actors.policy.saved import SHIPPED
from actors.serving.client.blocking import PolicyClient
from actors.serving.client.local import LocalPolicy

ROOT = Path(__file__).parents[3]


def test_the_shipped_policy_loads_without_a_path() -> None:
    policy = tamiyo.load_policy()
    assert policy.spaces.hash == seed_spaces(3).hash, "the observation changed: train it again"
    env = tamiyo.make_env(tasks=("spirals",), horizon_epochs=4, inner_steps=2)
    session = LocalPolicy(policy).open(env.spaces)
    seen, _ = env.reset(seed=1)
    for _ in range(4):
        answer = session.step(seen["obs"], seen["blueprint_indices"], env.masks())
        seen, _, _, _, info = env.step(answer.action)
        assert "illegal_action" not in info
    assert tamiyo.load_policy(slots=5).spaces.slots == 5


def test_the_shipped_policy_is_small_and_names_its_origin() -> None:
    assert SHIPPED.stat().st_size < 2 * 2**20
    made = json.loads(SHIPPED.with_name("policy.json").read_text())
    assert made["spaces_hash"] == tamiyo.load_policy().spaces.hash
    assert made["made_by"].startswith("tamiyo train")


def test_wheel_and_sdist_contain_the_shipped_policy(tmp_path: Path) -> None:
    from hatchling.builders.sdist import SdistBuilder
    from hatchling.builders.wheel import WheelBuilder

    wheel = next(iter(WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])))
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"actors/policy/shipped/policy.{kind}" for kind in ("safetensors", "json")} <= set(names)
    archive = next(iter(SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])))
    with tarfile.open(archive) as source:
        assert any(n.endswith("actors/policy/shipped/policy.safetensors") for n in source.getnames())


def test_policies_can_be_given_as_path_address_or_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAMIYO_POLICY", raising=False)
    assert isinstance(find_policy(None, 1.0), LocalPolicy)
    assert isinstance(find_policy(SHIPPED, 1.0), LocalPolicy)
    assert isinstance(find_policy(str(SHIPPED), 1.0), LocalPolicy)
    client = find_policy("127.0.0.1:1", 1.0)
    assert isinstance(client, PolicyClient)
    assert find_policy(client, 1.0) is client
    monkeypatch.setenv("TAMIYO_POLICY", "127.0.0.1:1")
    assert isinstance(find_policy(None, 1.0), PolicyClient)


def test_a_local_session_continues_from_its_exported_state() -> None:
    policy = LocalPolicy(tamiyo.load_policy())
    spaces = seed_spaces(3)
    env = tamiyo.make_env(horizon_epochs=3, inner_steps=2)
    seen, _ = env.reset(seed=0)
    look = (seen["obs"], seen["blueprint_indices"], env.masks(), False)
    session = policy.open(spaces, seed=5)
    assert session.exported == b""
    session.step(*look)
    state = session.exported
    expected, other = session.step(*look), policy.open(spaces, state=state).step(*look)
    assert expected.step_index == other.step_index == 1
    assert expected.value == other.value
    np.testing.assert_array_equal(expected.log_probs, other.log_probs)


def test_growing_imports_neither_ray_nor_the_learner() -> None:
    """A user's training loop imports neither Ray nor the learner."""
    code = (
        "import sys, tamiyo; tamiyo.GrowthController, tamiyo.SlotSpec;"
        "sys.exit(str({'ray', 'redis', 'learner'} & set(sys.modules)) if {'ray', 'redis', 'learner'} & set(sys.modules)"
        " else 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
