"""Served answers equal those of a local policy, alone and in shared batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from actors.serving.client.asynchronous import AsyncPolicyClient
from actors.serving.client.blocking import PolicyClient
from actors.serving.server import batcher
from actors.sessions.local import LocalPolicy
from actors.sessions.session import Answer
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
            assert_same(
                session.step(*step_inputs(1, step), step % 2 == 0), local.step(*step_inputs(1, step), step % 2 == 0)
            )
        session.reset(seed=8)
        local.reset(seed=8)
        assert_same(session.step(*step_inputs(3, 0), False), local.step(*step_inputs(3, 0), False))


@pytest.mark.parametrize("stream", [False, True])
def test_sessions_that_share_batches_do_not_affect_each_other(server: RunningServer, stream: bool) -> None:
    """Twenty concurrent sessions, deterministic and sampled, with two numbers of slots."""

    async def play(client: AsyncPolicyClient, seed: int) -> list[Answer]:
        spaces = SPACES if seed % 3 else SPACES.with_slots(4)
        async with await client.open(spaces, seed=seed) as session:
            return [await session.step(*step_inputs(seed, step, spaces), seed % 2 == 0) for step in range(STEPS)]

    async def main() -> list[list[Answer]]:
        async with AsyncPolicyClient(server.address, stream=stream) as client:
            return await asyncio.gather(*(play(client, seed) for seed in range(20)))

    policy = LocalPolicy(toy_network(), version=1)
    for seed, answers in enumerate(asyncio.run(main())):
        spaces = SPACES if seed % 3 else SPACES.with_slots(4)
        local = policy.open(spaces, seed=seed)
        for step, answer in enumerate(answers):
            assert_same(answer, local.step(*step_inputs(seed, step, spaces), seed % 2 == 0))
    value = server.server.metrics.registry.get_sample_value
    single, allowed = (value("tamiyo_serve_batch_steps_bucket", {"le": limit}) for limit in ("1.0", "8.0"))
    assert single < allowed == value("tamiyo_serve_batch_steps_count")  # some passes were shared, by 8 at most
