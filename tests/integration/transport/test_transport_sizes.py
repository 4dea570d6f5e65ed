"""`queue.max_episode_bytes` applies alike to puts, to the learner's intake and to dead letters that are shown."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from actors.codec import MAX_EPISODE_BYTES, encode_episode, largest_episode_bytes
from actors.config import ConfigError, GymConfig, PolicyConfig, QueueConfig
from actors.policy.cores.core import make_core
from actors.policy.state import PolicyState, StateSizes
from actors.transport.base import EpisodeHeader
from actors.types.actions import independent_spec
from actors.types.episode import RecurrentState
from actors.types.spaces import Spaces
from deploy.commands.admin.dead_letters import dead_letters
from deploy.config.schema import PRESETS
from deploy.launch.process_settings import checked_spaces
from learner.intake import Intake
from learner.schema import EpisodeSchema
from tests.support.builders import make_episode
from tests.support.queueing import OK, counts, put, take_ids
from tests.support.stores import Store

pytestmark = pytest.mark.integration


def test_the_learner_accepts_all_sizes_that_the_queue_accepts(any_store: Store) -> None:
    wide, transport = Spaces.flat(independent_spec([3]), 4500), any_store(max_episode_bytes=64 * 2**20)
    episode = make_episode(steps=1000, features=4500, slots=0, head_sizes=(3,), spaces_hash=wide.hash)
    payload = encode_episode(episode)
    assert len(payload) > MAX_EPISODE_BYTES == QueueConfig().max_episode_bytes
    transport.open_generation(-1, "learner")
    assert transport.put(EpisodeHeader.from_episode(episode), payload).status is OK
    schema = EpisodeSchema(wide, StateSizes(h=(1, 8), c=(1, 8)), state_stride=8)
    taken = Intake(transport, schema, max_policy_lag=9).collect(1, 0, iter([False, True]).__next__)
    assert len(taken[0].episode) == 1000
    assert counts(transport, "pending", "dead_lettered") == (1, 0)


def test_reasons_are_printed_literally(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    reason = "[/] [bold]x[/] \x1b[2J\x07\r\ny"
    transport = store()
    transport.open_generation(-1, "learner")
    put(transport, 0)
    transport.dead_letter(take_ids(transport)[0], reason)
    assert dead_letters("list", store.url, store.namespace, []) == 0
    shown = capsys.readouterr().out
    assert "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in reason) in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("core", ["feedforward", "lstm", "lstm+memory"])
@pytest.mark.parametrize(
    ("steps", "obs_size", "sizes", "stride", "burn_in"),
    [(1, 1, [2], 1, 0), (333, 40, [129, 3, 40_000], 7, 333), (2000, 2, [2] * 9, 1, 0)],
)
def test_largest_episode_bytes_is_a_tight_upper_bound(
    core: str, steps: int, obs_size: int, sizes: list[int], stride: int, burn_in: int
) -> None:
    config = PolicyConfig(core=core, hidden_size=24, num_layers=2, memory_cells=5, memory_size=6)
    spaces = Spaces.flat(independent_spec(sizes), obs_size)
    state = StateSizes.from_config(config)
    assert state == make_core(4, config).sizes
    burnt = burn_in + stride - 1 if burn_in else 0
    first, states = (
        RecurrentState(*(t.numpy() for t in PolicyState.zeros(state, n))) for n in (1, -(-(burnt + steps) // stride))
    )
    parts: dict[str, Any] = {"steps": steps, "features": obs_size, "slots": 0, "head_sizes": tuple(sizes)}
    parts |= {"state_stride": stride, "burn_in": burnt, "initial_state": first, "states": states}
    parts["policy_version"] = np.arange(2**53 - 1 - steps, 2**53 - 1)
    actual = len(encode_episode(make_episode(**parts, telemetry={f"{n:0100}": 1.5 for n in range(256)})))
    assert actual <= largest_episode_bytes(spaces, steps, state.floats, stride, burn_in) <= 1.1 * actual + 4096


def test_segments_that_exceed_the_limit_are_refused_at_the_start() -> None:
    base = PRESETS["general"]
    learner = dataclasses.replace(base.learner, batch_steps=2**26)
    config = dataclasses.replace(base, gym=GymConfig("CartPole-v1", max_segment_steps=300_000), learner=learner)
    seeds = dataclasses.replace(PRESETS["quick"], env=dataclasses.replace(base.env, horizon_epochs=40_000))
    for large, words in ((config, "gym.max_segment_steps is 300000"), (seeds, "env.horizon_epochs is 40000")):
        with pytest.raises(ConfigError, match=f"{words}: .* raise queue.max_episode_bytes"):
            checked_spaces(large)
    raised = dataclasses.replace(config, queue=QueueConfig(max_episode_bytes=2**30 // 2))
    assert checked_spaces(raised).obs_size == 4
    with pytest.raises(ConfigError, match="at most"):
        QueueConfig(max_episode_bytes=2**29 + 1)
