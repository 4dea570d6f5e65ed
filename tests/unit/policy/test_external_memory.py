"""The external memory's statistics: what they say is what happened, and the update reports them under known names."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from actors.config import PolicyConfig
from actors.metrics import registry as metrics
from actors.policy.cores.memory import STATISTICS, ExternalMemory, scan
from learner.config import LearnerConfig
from learner.ppo.batch import make_batch
from learner.ppo.optimizer import make_optimizer
from learner.ppo.update import PPOUpdate
from tests.support.toy import SPACES, toy_network, toy_seed, toy_wave

CELLS, SIZE, HIDDEN = 3, 4, 6


def run(gate_bias: float, steps: int = 8) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(statistics `[T, 1, 3]`, cells, usage) with a gate that is as open as its bias says."""
    torch.manual_seed(0)
    memory = ExternalMemory(PolicyConfig(hidden_size=HIDDEN, memory_cells=CELLS, memory_size=SIZE))
    with torch.no_grad():
        memory.inputs.weight[-1].zero_()
        memory.inputs.bias[-1] = gate_bias
        state = torch.zeros(CELLS, 1, SIZE), torch.zeros(CELLS, 1, 1)
        _, told, cells, usage = scan(memory.weights(), torch.randn(steps, 1, HIDDEN), *state)
    return told, cells, usage


def test_an_open_gate_fills_every_cell_before_it_evicts_one() -> None:
    told, cells, usage = run(20.0)
    assert STATISTICS == ("write_gate", "evictions", "attention_entropy")
    assert torch.allclose(told[..., 0], torch.ones(8, 1))
    assert told[:, 0, 1].tolist() == [0.0] * CELLS + [1.0] * (8 - CELLS)
    assert bool((cells.abs().amax((1, 2)) > 0).all())
    assert told[0, 0, 2] == pytest.approx(1.0)  # nothing is written yet, so attention is uniform
    assert bool((told[..., 2] <= 1.0 + 1e-6).all())
    assert usage.shape == (CELLS, 1, 1)


def test_a_closed_gate_writes_and_evicts_nothing() -> None:
    told, cells, _ = run(-200.0)
    assert not bool(told[..., :2].any())
    assert not bool(cells.any())


def test_the_least_used_cell_is_the_one_that_goes() -> None:
    torch.manual_seed(1)
    memory = ExternalMemory(PolicyConfig(hidden_size=HIDDEN, memory_cells=CELLS, memory_size=SIZE))
    before, usage = torch.ones(CELLS, 1, SIZE), torch.tensor([5.0, 0.5, 4.0])[:, None, None]
    with torch.no_grad():
        cells = scan(memory.weights(), torch.randn(1, 1, HIDDEN), before, usage)[2]
    assert [bool(torch.equal(a, b)) for a, b in zip(cells, before, strict=True)] == [True, False, True]


def test_the_update_reports_them_for_a_memory_and_for_no_other_core() -> None:
    for core, names in (("lstm+memory", STATISTICS), ("lstm", ())):
        network = toy_network(core=core)
        episodes = toy_wave(network, [toy_seed(n, truncated=False, salt=n) for n in (4, 7, 3)])
        update = PPOUpdate(network, make_optimizer(network, 1e-3, 0.0), LearnerConfig(state_stride=1))
        told = update(make_batch(episodes, SPACES), 0, 0)
        assert {name for name in told if name.startswith("memory/")} == {f"memory/{name}" for name in names}
        for name in names:
            assert 0.0 <= told[f"memory/{name}"] <= 1.0
            assert metrics.lookup(f"memory/{name}").name == f"memory/{name}"
            assert np.isfinite(told[f"memory/{name}"])
