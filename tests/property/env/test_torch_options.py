"""`env.cuda_graph` changes results by rounding only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actors.blueprints.vector import MLP_BLUEPRINTS
from actors.config import EnvConfig
from actors.env.seed_fleet import SeedTrainingFleet
from actors.env.stacked.epoch import StackedEpoch

ENVS = len(MLP_BLUEPRINTS) - 1
# (op, slot): germinate, train, blend, in two slots of the stream and a column slot
SCRIPT = [(1, 1), (5, 1), (1, 3), (5, 3), (1, 2), (5, 1), (5, 2), (5, 3), (2, 1)]
CONFIG = EnvConfig(
    host_width=(5, 8), horizon_epochs=len(SCRIPT), inner_steps=(2, 4), budget_ratio=20.0, backend="torch", device="cpu"
)


def _play(config: EnvConfig) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return observations and parameters after every epoch of a script, with another blueprint in each environment."""
    fleet = SeedTrainingFleet(config, ENVS, 0)
    fleet.reset(range(ENVS))
    seen, params = [], []
    for op, slot in SCRIPT:
        own = [(7 + e % 3, 0) if slot == 3 else (e + 1, e % 3) for e in range(ENVS)]
        actions = np.array([[op, slot, blueprint, blend, 1 if op == 2 else 2, 1] for blueprint, blend in own])
        seen.append(fleet.step(actions).obs)
        assert not fleet.illegal
        params.append(fleet.networks.hosts.params.cpu().numpy().copy())
    return np.stack(seen), np.stack(params)


def test_hosts_are_trained_without_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch lets cuDNN's convolutions use TF32, with which fleets on a GPU would differ from those on a CPU."""
    seen, step = set(), StackedEpoch.step

    def watched(*arguments: Any) -> Any:
        seen.add((torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32))
        return step(*arguments)

    monkeypatch.setattr(StackedEpoch, "step", watched)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    fleet = SeedTrainingFleet(replace(CONFIG, tasks=("gratings",), host_width=4), 2, 0)
    fleet.reset(range(2))
    fleet.step(np.zeros((2, len(fleet.spaces.action.heads)), dtype=np.int64))
    assert seen == {(False, False)}
    assert torch.backends.cudnn.allow_tf32


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_captured_steps_equal_plain_ones() -> None:
    plain = replace(CONFIG, device="cuda")
    (a, b), (c, d) = _play(replace(plain, cuda_graph=True)), _play(plain)
    np.testing.assert_allclose(b[0], d[0], rtol=1e-5, atol=1e-6)  # one epoch of rounding
    np.testing.assert_allclose(b, d, rtol=1e-3, atol=1e-3)  # nine epochs, in which training magnifies rounding
    assert np.median(np.abs(a - c)) < 1e-5
