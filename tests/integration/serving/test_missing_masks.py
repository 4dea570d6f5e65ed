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


def trained(folder: Path, masks: str) -> Path:
    """The folder of a run of one update."""
    flags = ["--env", f"{gym_envs.__name__}:tests/Scripted-v0", "--gym.kwargs", f'masks="{masks}"']
    small = ["--learner.updates", "1", "--learner.batch_episodes", "4", "--learner.batch_steps", "64"]
    place = ["--run.root", str(folder), "--run.name", masks, "--run.reference_episodes", "0"]
    assert main(["train", "--in-process", *flags, *small, *place, "--gym.max_segment_steps", "16"]) == 0
    return folder / masks


@pytest.mark.parametrize("masks", ["info", "none"])
def test_a_step_without_a_mask(tmp_path: Path, masks: str) -> None:
    run = trained(tmp_path, masks)
    policy, local = tamiyo.load_policy(run), tamiyo.LocalPolicy(tamiyo.load_policy(run).network)
    with serving(read_weights(run)) as server, tamiyo.PolicyClient(server.address) as client:
        sessions = [client.open(policy.spaces), local.open(policy.spaces)]
        for act in (policy.act, *(session.step for session in sessions)):
            if masks == "none":
                act(OBS)
                continue
            with pytest.raises(tamiyo.PolicyError, match="the step has no mask") as refusal:
                act(OBS)
            assert (refusal.value.reason, str(refusal.value).count("\n")) == ("ILLEGAL_MASK", 0)
        for session in sessions:
            assert session.step(OBS, masks=[0, 0, 1]).action[0] == 2
            session.step(OBS, masks=[1, 1, 1])
    assert policy.act(OBS, [0, 1, 0]) == 1
