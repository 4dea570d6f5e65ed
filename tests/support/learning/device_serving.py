"""Programs of the policy server for `device_programs`. Each takes the device to run on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch

from actors.config import PolicyConfig
from actors.policy.acting.exported import example_inputs
from actors.policy.acting.programs import TracedPolicy
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.state import PolicyState
from actors.serving.client.blocking import PolicyClient
from actors.serving.server import server
from actors.serving.server.models import ModelVersions, ServedRule
from tests.support.learning.device_learning import CPU, same
from tests.support.learning.toy import SPACES, toy_network
from tests.support.serving.servers import serving, step_inputs, weights


def served_versions(device: torch.device) -> None:
    """Versions of served weights that come and go: the programs of one that is no longer used get newer weights."""

    def answers(to: torch.device) -> list[Any]:
        models, found = ModelVersions(weights(1, 1), to, max_versions=2), []
        for version in range(2, 5):
            models.adopt(models.build(weights(version, version)))
            programs = models.newest.programs(SPACES)
            assert isinstance(programs, TracedPolicy)
            inputs = [t.to(to) for t in example_inputs(toy_network(), 2)]
            found += programs.greedy(*inputs[:9])
        return found

    for ours, theirs in zip(answers(device), answers(CPU), strict=True):
        same(ours, theirs)


def exported_session(device: torch.device) -> None:
    """A session whose state is exported, and another that continues from it."""

    def answers(to: torch.device) -> list[Any]:
        found, state = [], b""
        with patch.object(server, "_device", lambda name: to), serving() as running:
            for step in range(2):
                with PolicyClient(running.address) as client:
                    session = client.open(SPACES, seed=7, state=state)
                    found.append(session.step(*step_inputs(3, step), False))
                    state = session.exported
        return found

    for ours, theirs in zip(answers(device), answers(CPU), strict=True):
        same(ours.action, theirs.action)
        same(ours.log_probs, theirs.log_probs)


def rule(device: torch.device) -> None:
    """A rule that is served instead of weights; what it remembers of a model stays in the state table."""

    def answers(to: torch.device) -> list[Any]:
        models = ModelVersions(ServedRule("fixed-column:double@1"), to, max_versions=2)
        network = FactoredRecurrentActorCritic(models.spaces, PolicyConfig(hidden_size=4))
        inputs = [t.to(to) for t in example_inputs(network, 2)[:5]]
        program, state, found = models.newest.programs(models.spaces), PolicyState.zeros(models.state_sizes, 2, to), []
        for _ in range(3):
            *chosen, h, c, cells, usage = program.greedy(*inputs, *state)
            state = PolicyState(h, c, cells, usage)
            found += [*chosen, *state]
        assert {t.device.type for t in found} == {to.type}
        return found

    for ours, theirs in zip(answers(device), answers(CPU), strict=True):
        same(ours, theirs)


SERVING: tuple[Callable[[torch.device], None], ...] = (served_versions, exported_session, rule)
