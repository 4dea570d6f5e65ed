"""Served answers equal those of a local policy, alone and in shared batches; steps without a mask are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tamiyo
from actors.policy.saved import read_weights
from actors.serving.client.asynchronous import AsyncPolicyClient
from actors.serving.client.blocking import PolicyClient
from actors.serving.server import batcher
from actors.sessions.local import LocalPolicy
from actors.sessions.session import Answer
from deploy.cli import main
from tests.support.env import gym_envs
from tests.support.learning.toy import SPACES, toy_network
from tests.support.serving.servers import RunningServer, serving, step_inputs, weights

pytestmark = pytest.mark.integration
STEPS = 6


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """One with small batches, so that the steps of twenty sessions need several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batcher, "MAX_BATCH", 8)
        with serving() as running:
            yield running


def assert_same(served: Answer, local: Answer) -> None:
    assert served.action.tolist() == local.action.tolist()
    np.testing.assert_allclose(served.log_probs, local.log_probs, atol=1e-5)
    np.testing.assert_allclose(served.value, local.value, rtol=1e-5, atol=1e-4)
    assert (served.policy_version, served.step_index) == (local.policy_version, local.step_index)


@pytest.mark.parametrize(
    "changes",
    [{"core": "lstm+memory", "critic": "q_op"}, {"core": "feedforward"}, {"blind": True}, {"causal_masks": False}],
)
def test_every_core_and_critic_can_be_served(changes: dict[str, Any]) -> None:
    with serving(weights(**changes)) as running, PolicyClient(running.address) as client:
        local = LocalPolicy(toy_network(**changes), version=1).open(SPACES, seed=5)
        session = client.open(SPACES, seed=5)
        for step in range(4):
            assert_same(*(each.step(*step_inputs(1, step), step % 2 == 0) for each in (session, local)))
        for each in (session, local):
            each.reset(seed=8)
        assert_same(*(each.step(*step_inputs(3, 0), False) for each in (session, local)))


@pytest.mark.parametrize("stream", [False, True])
def test_sessions_that_share_batches_do_not_affect_each_other(server: RunningServer, stream: bool) -> None:
    """Twenty concurrent sessions, deterministic and sampled, with two numbers of slots."""

    async def play(client: AsyncPolicyClient, seed: int) -> list[Answer]:
        spaces = SPACES if seed % 3 else SPACES.with_slots(4)
        async with await client.open(spaces, seed=seed) as session:
            return [await session.step(*step_inputs(seed, step, spaces), seed % 2 == 0) for step in range(STEPS)]

    async def play_all() -> list[list[Answer]]:
        async with AsyncPolicyClient(server.address, stream=stream) as client:
            return await asyncio.gather(*(play(client, seed) for seed in range(20)))

    policy = LocalPolicy(toy_network(), version=1)
    for seed, answers in enumerate(asyncio.run(play_all())):
        spaces = SPACES if seed % 3 else SPACES.with_slots(4)
        local = policy.open(spaces, seed=seed)
        for step, answer in enumerate(answers):
            assert_same(answer, local.step(*step_inputs(seed, step, spaces), seed % 2 == 0))
    value = server.server.metrics.registry.get_sample_value
    single, allowed = (value("tamiyo_serve_batch_steps_bucket", {"le": limit}) for limit in ("1.0", "8.0"))
    assert single < allowed == value("tamiyo_serve_batch_steps_count")  # some passes were shared, by 8 at most


def test_a_step_without_a_mask_is_refused_where_choices_were_illegal_in_training(tmp_path: Path) -> None:
    flags = ["--env", f"{gym_envs.__name__}:tests/Scripted-v0", "--gym.kwargs", 'masks="info"']
    small = ["--learner.updates", "1", "--learner.batch_episodes", "4", "--learner.batch_steps", "64"]
    place = ["--run.root", str(tmp_path), "--run.name", "run", "--run.reference_episodes", "0"]
    assert main(["train", "--in-process", *flags, *small, *place, "--gym.max_segment_steps", "16"]) == 0
    run, obs = tmp_path / "run", np.zeros(4, np.float32)
    policy, local = tamiyo.load_policy(run), tamiyo.LocalPolicy(tamiyo.load_policy(run).network)
    with serving(read_weights(run)) as server, tamiyo.PolicyClient(server.address) as client:
        sessions = [client.open(policy.spaces), local.open(policy.spaces)]
        for act in (policy.act, *(session.step for session in sessions)):
            with pytest.raises(tamiyo.PolicyError, match="the step has no mask") as refusal:
                act(obs)
            assert (refusal.value.reason, str(refusal.value).count("\n")) == ("ILLEGAL_MASK", 0)
        for session in sessions:
            assert session.step(obs, masks=[0, 0, 1]).action[0] == 2
    assert policy.act(obs, [0, 1, 0]) == 1
