"""`env.cuda_graph` changes results by rounding only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from actors.blueprints.vector import MLP_BLUEPRINTS
from actors.config import EnvConfig
from actors.env.seed_fleet import SeedTrainingFleet
from actors.env.stacked import cuda_graph
from actors.env.stacked.cuda_graph import CapturedStep, Step
from actors.env.stacked.epoch import StackedEpoch

ENVS = len(MLP_BLUEPRINTS) - 1
# (op, slot): germinate, train, blend, in two slots of the stream and a column slot
SCRIPT = [(1, 1), (5, 1), (1, 3), (5, 3), (1, 2), (5, 1), (5, 2), (5, 3), (2, 1)]
CONFIG = EnvConfig(
    host_width=(5, 8), horizon_epochs=len(SCRIPT), inner_steps=(2, 4), budget_ratio=20.0, backend="torch", device="cpu"
)


def _play(config: EnvConfig, use_graph: bool = False) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return observations and parameters after every epoch of a script, with another blueprint in each environment."""
    fleet = SeedTrainingFleet(config, ENVS, 0)
    fleet.reset(range(ENVS))
    if use_graph:
        fleet.networks.settings = replace(fleet.networks.settings, cuda_graph=True)
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


class Tape(TorchDispatchMode):
    """What a CUDA graph is, on a CPU: operators that run again on the same memory, with Python's values as they were.

    It refuses what a graph cannot hold: tensors made of Python's values, and values that are read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[tuple[Any, Any, Any, Any]] = []
        self.before: dict[int, tuple[Any, Any]] = {}  # by address: memory that was written, and its content before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        assert name not in ("lift_fresh", "_local_scalar_dense", "nonzero", "_to_copy"), name
        arguments = zip(func._schema.arguments, args, strict=False)
        written = [value for own, value in arguments if own.alias_info is not None and own.alias_info.is_write]
        if name == "native_batch_norm":  # its schema does not say that it writes running statistics
            written += args[3:5]
        for t in filter(torch.is_tensor, tree_leaves(written)):
            storage = t.untyped_storage()
            self.before.setdefault(storage.data_ptr(), (storage, storage.clone()))
        out = func(*args, **kwargs)
        self.operators.append((func, args, kwargs, out))
        return out

    def undo(self) -> None:
        """Put back what was written: capturing does not run a graph."""
        for storage, content in self.before.values():
            storage.copy_(content)

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, out in self.operators:
            for old, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
                if torch.is_tensor(new) and new.untyped_storage().data_ptr() != old.untyped_storage().data_ptr():
                    old.copy_(new)


class Taped(CapturedStep):
    """A step that is captured on a tape."""

    def __init__(self, step: Step, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x.clone(), y.clone()
        with Tape() as tape:
            self.out = step(self.x, self.y, True)
        tape.undo()
        self.graph = tape


@pytest.mark.parametrize("task", ["spirals", "wave_forms", pytest.param("gratings", marks=pytest.mark.long)])
def test_steps_can_be_captured_and_equal_plain_ones(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments end at different steps of the graph, and every step measures scores."""
    config = replace(CONFIG, tasks=(task,), host_width=4, batch_size=8, contribution_every=9)
    monkeypatch.setattr(cuda_graph, "CapturedStep", Taped)
    monkeypatch.setattr(cuda_graph, "_warm_up", lambda step, x, y: step(x, y, True))
    for a, b in zip(_play(config), _play(config, use_graph=True), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_captured_steps_equal_plain_ones() -> None:
    plain = replace(CONFIG, device="cuda")
    (a, b), (c, d) = _play(replace(plain, cuda_graph=True)), _play(plain)
    np.testing.assert_allclose(b[0], d[0], rtol=1e-5, atol=1e-6)  # one epoch of rounding
    np.testing.assert_allclose(b, d, rtol=1e-3, atol=1e-3)  # nine epochs, in which training magnifies rounding
    assert np.median(np.abs(a - c)) < 1e-5
