"""Programs of the policy server for `device_programs`. Each takes the device to run on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from actors.policy.acting.policy import Program
from actors.policy.state import PolicyState
from actors.serving.client.blocking import PolicyClient
from actors.serving.server import server
from actors.serving.server.models import ModelVersions
from actors.types.actions import ActionMasks
from actors.types.spaces import Spaces
from tests.support.learning.device_learning import CPU, same
from tests.support.learning.toy import SPACES, toy_network
from tests.support.serving.servers import serving, step_inputs, weights


def served_versions(device: torch.device) -> None:
    """Versions of served weights that come and go."""

    def answers(to: torch.device) -> list[Any]:
        models, found = ModelVersions(weights(1, 1), to), []
        for version in range(2, 5):
            models.adopt(models.build(weights(version, version)))
            states = toy_network().initial_state(2)
            found += _steps(models.newest.program(SPACES), SPACES, PolicyState(*(t.to(to) for t in states)), 1)
        return found

    for ours, theirs in zip(answers(device), answers(CPU), strict=True):
        same(ours, theirs)


def exported_session(device: torch.device) -> None:
    """A real server and its clients, by choice and by chance; each continues from the state of the last one."""

    def answers(to: torch.device) -> list[Any]:
        found, state = [], b""
        with patch.object(server, "_device", lambda name: to), serving() as running:
            for step in range(4):
                with PolicyClient(running.address) as client:
                    session = client.open(SPACES, seed=7, state=state)
                    found.append(session.step(*step_inputs(3, step), step == 3))
                    state = session.exported
        return found

    for ours, theirs in zip(answers(device), answers(CPU), strict=True):
        same(ours.action, theirs.action)
        same(ours.log_probs, theirs.log_probs)
        same(ours.value, theirs.value)


def _steps(program: Program, spaces: Spaces, states: PolicyState, count: int) -> list[Any]:
    """Run greedy steps of two sessions, in which everything is legal. Returns the decisions and the states after each,
    which are updated in place."""
    spec = spaces.action
    slotted = (2, spec.num_ops, spec.num_slots)
    shapes = ((2, spec.num_ops), slotted, (*slotted, spec.rest_size))
    masks = ActionMasks(*(np.ones(shape, dtype=np.bool_) for shape in shapes))
    obs = np.random.default_rng(0).standard_normal((2, spaces.obs_size)).astype(np.float32)  # equal slots would tie
    blueprints, noise = np.full((2, spaces.slots), -1), np.full((2, len(spec.heads)), 0.5)
    device, found = states.h.device, list[Any]()
    for _ in range(count):
        decision = program.run(obs, blueprints, masks, states, np.arange(2), noise, np.ones(2, dtype=np.bool_))
        assert {t.device.type for t in states} == {device.type}
        found += [torch.from_numpy(a) for a in (decision.actions, decision.log_probs, decision.values)]
        found += [t.clone() for t in states]
    return found


SERVING: tuple[Callable[[torch.device], None], ...] = (served_versions, exported_session)
