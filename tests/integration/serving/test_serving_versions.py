"""New weights under load: no call fails, and every answer is that of the version it reports."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from actors.policy.distribution import median_noise, next_hazard
from actors.policy.publish import from_weights
from actors.serving.client.asynchronous import AsyncPolicyClient
from actors.serving.client.blocking import PolicyClient
from actors.sessions.session import Answer, step_noise
from tests.support.learning.toy import SPACES
from tests.support.serving.servers import FakeWeightStore, RunningServer, serving, step_inputs, weights
from tests.support.serving.training_sessions import RawSession
from tests.support.waiting import wait_for

pytestmark = pytest.mark.integration
SESSIONS, LENGTH, LAST = 8, 6, 5


async def play(client: AsyncPolicyClient, seed: int, latest: bool) -> tuple[int, bool, list[Answer]]:
    async with await client.open(SPACES, seed=seed, latest=latest) as session:
        return seed, latest, [await session.step(*step_inputs(seed, step), seed % 2 == 0) for step in range(LENGTH)]


def assert_replayed(networks: dict[int, Any], answers: Sequence[Any], seed: int, inputs: int, sampled: bool) -> None:
    """Assert that each answer is that of the network of its version, with the state that the earlier ones left."""
    state, hazard = next(iter(networks.values())).initial_state(1), np.zeros(1)
    for step, answer in enumerate(answers):
        obs, blueprints, masks = step_inputs(inputs, step)
        batch = type(masks)(masks.op[None], masks.slot[None], masks.rest[None])
        noise = step_noise(seed, step, 4)[None] if sampled else median_noise(hazard, 4)
        decision, state = networks[answer.policy_version].act(obs[None], blueprints[None], batch, state, noise)
        hazard = next_hazard(hazard, decision.actions, decision.log_probs)
        assert list(answer.action) == decision.actions[0].tolist()
        np.testing.assert_allclose(answer.log_probs, decision.log_probs[0], atol=2e-5)


@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=pytest.mark.long)])
def test_weights_change_under_load_without_a_failed_or_wrong_answer(stream: bool) -> None:
    versions = {v: weights(seed=v, version=v) for v in range(1, LAST + 1)}
    store, played = FakeWeightStore(versions[1]), list[tuple[int, bool, list[Answer]]]()

    async def main(address: str) -> None:
        async with AsyncPolicyClient(address, stream=stream) as client:

            async def keep_playing(worker: int) -> None:
                seed = worker
                while store.newest is not versions[LAST] or played[-1][2][-1].policy_version != LAST:
                    played.append(await play(client, seed, latest=worker % 3 == 0))
                    seed += SESSIONS

            async def publish() -> None:
                for v in range(2, LAST + 1):
                    await asyncio.sleep(0.15)
                    store.newest = versions[v]

            await asyncio.gather(publish(), *(keep_playing(w) for w in range(SESSIONS)))

    with serving(store, session_ttl_s=3.0) as running:
        asyncio.run(asyncio.wait_for(main(running.address), 60))
        # a failed close is ignored: the session then has to expire
        wait_for(lambda: running.call(lambda: len(running.service.models.held)) == 1, 20)
    seen_versions = {a.policy_version for _, _, answers in played for a in answers}
    assert len(seen_versions) >= 3
    networks = {v: from_weights(w) for v, w in versions.items()}
    mixed = 0
    for seed, latest, answers in played:
        reported = {a.policy_version for a in answers}
        assert latest or len(reported) == 1  # pinned
        mixed += len(reported) > 1
        assert_replayed(networks, answers, seed, seed, sampled=bool(seed % 2))
    assert mixed or not any(latest for _, latest, _ in played)


def adopt(running: RunningServer, version: int) -> None:
    model = running.service.models.build(weights(seed=version, version=version))
    running.call(lambda: running.service.adopt(model))


def test_new_weights_are_adopted_and_the_sessions_of_the_oldest_version_move() -> None:
    """A moved session continues with its recurrent state, and a repeated step is still answered as before."""
    with serving(FakeWeightStore(weights(1)), max_versions=2) as running, PolicyClient(running.address) as client:
        sessions, first = [], []
        for version in (1, 2, 3, 4):
            sessions.append(RawSession(running.address, train=False, seed=5))
            first.append(sessions[-1].step(0, deterministic=False))
            adopt(running, version + 1)
            assert client.model().policy_version == version + 1
        assert [a.policy_version for a in first] == [1, 2, 3, 4]
        assert list(client.model().held_versions) == [4, 5]
        assert running.server.metrics.registry.get_sample_value("tamiyo_serve_sessions_moved_total") == 3
        again = sessions[0].step(0, deterministic=False)
        assert (again.policy_version, again.log_probs) == (1, first[0].log_probs)
        found = [s.step(1, deterministic=False) for s in sessions]
        assert [a.policy_version for a in found] == [5, 5, 5, 4]
        adopt(running, 6)
        assert sessions[0].step(2).policy_version == 5  # it is pinned again
    networks = {version: from_weights(weights(seed=version)) for version in (1, 5)}
    assert_replayed(networks, [first[0], found[0]], 5, 0, sampled=True)
