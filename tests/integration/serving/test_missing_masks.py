"""A policy that has learned where choices are illegal refuses steps without a mask, served and in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tamiyo
from actors.policy.saved import read_weights
from deploy.cli import main
from tests.support.env import gym_envs
from tests.support.serving.servers import serving

pytestmark = pytest.mark.integration
OBS = np.zeros(4, np.float32)


def test_a_step_without_a_mask_is_refused(tmp_path: Path) -> None:
    flags = ["--env", f"{gym_envs.__name__}:tests/Scripted-v0", "--gym.kwargs", 'masks="info"']
    small = ["--learner.updates", "1", "--learner.batch_episodes", "4", "--learner.batch_steps", "64"]
    place = ["--run.root", str(tmp_path), "--run.name", "run", "--run.reference_episodes", "0"]
    assert main(["train", "--in-process", *flags, *small, *place, "--gym.max_segment_steps", "16"]) == 0
    run = tmp_path / "run"
    policy, local = tamiyo.load_policy(run), tamiyo.LocalPolicy(tamiyo.load_policy(run).network)
    with serving(read_weights(run)) as server, tamiyo.PolicyClient(server.address) as client:
        sessions = [client.open(policy.spaces), local.open(policy.spaces)]
        for act in (policy.act, *(session.step for session in sessions)):
            with pytest.raises(tamiyo.PolicyError, match="the step has no mask") as refusal:
                act(OBS)
            assert (refusal.value.reason, str(refusal.value).count("\n")) == ("ILLEGAL_MASK", 0)
        for session in sessions:
            assert session.step(OBS, masks=[0, 0, 1]).action[0] == 2
    assert policy.act(OBS, [0, 1, 0]) == 1
