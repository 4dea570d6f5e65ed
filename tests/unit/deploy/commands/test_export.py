"""`tamiyo export`: program and ONNX model are the policy, for every core, over 200 steps with resets."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from actors.policy.acting.exported import INPUTS, OUTPUTS
from actors.policy.network import FactoredRecurrentActorCritic, MaskTensors
from actors.policy.state import PolicyState
from deploy import cli
from learner.ppo.optimizer import make_optimizer
from learner.run.checkpoint import LearnerProgress, save_checkpoint
from tests.support.learning.toy import CORES, SPACES, random_masks, toy_network

pytestmark = pytest.mark.filterwarnings("ignore:The tensor attributes")
COUNT = 3


def export(network: FactoredRecurrentActorCritic, path: Path) -> int:
    save_checkpoint(path.parent, network, make_optimizer(network, 1e-3, 0.0), LearnerProgress(), (), 1, 1)
    return cli.main(["export", str(path.parent), str(path)])


def walk(network: FactoredRecurrentActorCritic, program: Any, steps: int = 200, keep_state: bool = True) -> float:
    """Largest difference to eager; rows are reset at random, every tenth step is greedy."""
    rng = np.random.default_rng(0)
    state, theirs = network.initial_state(COUNT), tuple(network.initial_state(COUNT))
    worst = 0.0
    for step in range(steps):
        obs = torch.from_numpy(rng.standard_normal((COUNT, SPACES.obs_size)).astype(np.float32))
        blueprints = torch.from_numpy(rng.integers(-1, 4, (COUNT, 2)))
        drawn = [random_masks(rng) for _ in range(COUNT)]
        masks = MaskTensors(*(torch.from_numpy(np.stack([m[k] for m in drawn])) for k in range(3)))
        reset, noise = torch.from_numpy(rng.random(COUNT) < 0.05), torch.from_numpy(rng.random((COUNT, 4)))
        greedy = step % 10 == 0
        with torch.no_grad():
            out = network.step(obs, blueprints, masks, state.reset_rows(reset), noise, greedy)
            given = (obs, blueprints, *masks, *theirs, reset, noise, torch.tensor(greedy))
            found = dict(zip(OUTPUTS, program(*given), strict=True))
        assert torch.equal(found["actions"], out.actions)
        for name in ("log_probs", "values", "baseline_values"):
            worst = max(worst, float((found[name] - getattr(out, name)).abs().max()))
        state = out.state
        if keep_state:
            theirs = tuple(found[name] for name in PolicyState._fields)
    return worst


@pytest.mark.parametrize(
    "core", [pytest.param(c, marks=[] if c == "lstm+memory" else [pytest.mark.long]) for c in CORES]
)
def test_the_program_is_the_policy_over_200_steps_with_resets(core: str, tmp_path: Path) -> None:
    network = toy_network(core=core, critic="q_op").eval()
    path = tmp_path / "policy.pt2"
    assert export(network, path) == 0
    extra = {"tamiyo.json": ""}
    program = torch.export.load(path, extra_files=extra).module()
    assert list(json.loads(extra["tamiyo.json"])["inputs"]) == list(INPUTS)
    assert walk(network, program) < 2e-5
    if core != "feedforward":  # a program whose state does not travel is caught
        with pytest.raises(AssertionError):
            assert walk(network, program, 20, keep_state=False) < 2e-5


def run_onnx(path: Path) -> tuple[Callable[..., list[torch.Tensor]], dict[str, Any]]:
    """Return the model as a function of INPUTS that returns OUTPUTS, run by onnxruntime, and its own description."""
    session = onnxruntime.InferenceSession(path)
    names = [i.name for i in session.get_inputs()]

    def program(*given: torch.Tensor) -> list[torch.Tensor]:
        tensors = dict(zip(INPUTS, given, strict=True))
        found = session.run(None, {name: tensors[name].numpy() for name in names})
        by_name = dict(zip((o.name.removeprefix("next_") for o in session.get_outputs()), found, strict=True))
        return [torch.from_numpy(by_name[name]) if name in by_name else tensors[name] for name in OUTPUTS]

    return program, json.loads(session.get_modelmeta().custom_metadata_map["tamiyo"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("core", "option"),
    [
        ("lstm", {}),
        ("lstm+memory", {"critic": "q_op"}),
        ("feedforward", {"encoder": "flat"}),
        ("lstm", {"heads": "independent"}),
    ],
)
def test_the_onnx_model_is_the_policy_over_200_steps_with_resets(
    core: str, option: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = toy_network(core=core, **option).eval()
    path = tmp_path / "policy.onnx"
    assert export(network, path) == 0
    said = capsys.readouterr()
    assert ("ONNX opset 20" in said.out, said.err) == (True, "")
    program, description = run_onnx(path)
    assert description["inputs"]["obs"] == f"float32 [1, {SPACES.obs_size}]"
    assert ("h" in description["inputs"]) == (core != "feedforward")
    assert walk(network, program) < 2e-5


def test_without_the_extra_the_export_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert export(toy_network(), tmp_path / "policy.onnx") == 2
    assert "pip install 'tamiyo[onnx]'" in capsys.readouterr().err
    assert not (tmp_path / "policy.onnx").exists()
