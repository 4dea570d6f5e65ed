"""Programs of the policy server for `device_programs`. Each takes the device to run on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from actors.policy.state import PolicyState
from actors.serving.client.blocking import PolicyClient
from actors.serving.server import server
from actors.serving.server.models import ModelVersions
from actors.types.actions import ActionMasks
from tests.support.learning.device_learning import CPU, same
from tests.support.learning.toy import SPACES, random_masks, toy_network
from tests.support.serving.servers import serving, step_inputs, weights


def served_versions(device: torch.device) -> None:
    """Versions of served weights that come and go."""

    def answers(to: torch.device) -> list[Any]:
        models, found = ModelVersions(weights(1, 1), to), []
        for version in range(2, 5):
            models.adopt(models.build(weights(version, version)))
            states = PolicyState(*(t.to(to) for t in toy_network().initial_state(2)))
            program, greedy = models.newest.program(SPACES), np.ones(2, dtype=np.bool_)
            decision = program.run(obs, blueprints, masks, states, np.arange(2), noise, greedy)
            assert {t.device.type for t in states} == {to.type}
            found += [decision.actions, decision.log_probs, decision.values, *(t.clone() for t in states)]
        return found

    drawn = [random_masks(np.random.default_rng(seed)) for seed in range(2)]
    masks = ActionMasks(*(np.stack(of_rows) for of_rows in zip(*drawn, strict=True)))
    obs = np.random.default_rng(0).standard_normal((2, SPACES.obs_size)).astype(np.float32)
    blueprints, noise = np.full((2, SPACES.slots), -1), np.full((2, len(SPACES.action.heads)), 0.5)
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


SERVING: tuple[Callable[[torch.device], None], ...] = (served_versions, exported_session)
