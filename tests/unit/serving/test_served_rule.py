"""A rule behind the policy server answers as it does in this process, at any number of slots, and exports its state."""

from __future__ import annotations

from typing import Any

import pytest

import tamiyo
from actors.config import ConfigError
from actors.env.env import SeedTrainingEnv
from actors.errors import UserError
from actors.serving.client.blocking import PolicyClient
from actors.serving.server.models import ServedRule
from actors.sessions.local import LocalRule
from deploy.commands.serve_flags import serve_flags
from tests.support.serving.servers import serving

RULE = "fixed-column:double@2"


@pytest.mark.parametrize("slots", [1, 4])
def test_a_served_rule_acts_as_in_this_process(slots: int) -> None:
    with serving(ServedRule(RULE)) as running, PolicyClient(running.address) as client:
        sizes: dict[str, Any] = {"slots": slots, "column_slots": 1, "horizon_epochs": 6, "inner_steps": 2}
        env: SeedTrainingEnv = tamiyo.make_env(
            tasks=("moons",), host_width=3, points_per_doubling=1.0, **sizes
        ).unwrapped
        session, local = client.open(env.spaces), LocalRule(RULE).open(env.spaces)
        seen, info = env.reset(seed=1)
        ops = []
        for epoch in range(6):
            if epoch == 3:  # another session continues from the exported state
                session = client.open(env.spaces, state=session.exported)
            given = seen["obs"], seen["blueprint_indices"], info["masks"]
            answer, here = session.step(*given, deterministic=epoch % 2 == 0), local.step(*given)
            assert answer.action.tolist() == here.action.tolist()
            ops.append(int(answer.action[0]))
            seen, _, _, _, info = env.step(answer.action)
        assert ops == [0, 0, 1, 5, 5, 0]


def test_what_is_served_is_named_once() -> None:
    assert serve_flags(["--rule", RULE]).rule == RULE
    for flags in ([], ["--rule", RULE, "--checkpoint", "runs/x"]):
        with pytest.raises(UserError, match="give one of --checkpoint PATH, --rule NAME and --redis URL"):
            serve_flags(flags)
    with pytest.raises(ConfigError, match="the rules are never, trial"):
        ServedRule("sometimes")
