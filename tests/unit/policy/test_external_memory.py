"""The external memory's statistics are correct, and the update reports them under declared names."""

from __future__ import annotations

import pytest
import torch

from actors.config import PolicyConfig
from actors.metrics.registry import lookup
from actors.policy.cores.memory import STATISTICS, ExternalMemory
from tests.support.learning.batches import toy_batch, toy_ppo
from tests.support.learning.toy import toy_network

CELLS, SIZE, HIDDEN = 3, 4, 6


def test_with_an_open_gate_all_cells_are_filled_before_one_is_evicted() -> None:
    torch.manual_seed(0)
    memory = ExternalMemory(PolicyConfig(hidden_size=HIDDEN, memory_cells=CELLS, memory_size=SIZE))
    with torch.no_grad():
        memory.inputs.weight[-1].zero_()
        memory.inputs.bias[-1] = 20.0
        state = torch.zeros(CELLS, 1, SIZE), torch.zeros(CELLS, 1, 1)
        _, statistics, cells, usage = memory(torch.randn(8, 1, HIDDEN), *state)
    assert STATISTICS == ("write_gate", "evictions", "attention_entropy")
    assert torch.allclose(statistics[..., 0], torch.ones(8, 1))
    assert statistics[:, 0, 1].tolist() == [0.0] * CELLS + [1.0] * (8 - CELLS)
    assert bool((cells.abs().amax((1, 2)) > 0).all())
    assert statistics[0, 0, 2] == pytest.approx(1.0)  # nothing has been written, so attention is uniform
    assert bool((statistics[..., 2] <= 1.0 + 1e-6).all())
    assert usage.shape == (CELLS, 1, 1)


def test_the_update_reports_memory_statistics_only_for_a_core_with_memory() -> None:
    for core, names in (("lstm+memory", STATISTICS), ("lstm", ())):
        reported = toy_ppo(1e-3, toy_network(core=core))(toy_batch(core=core), 0, 0)
        assert {name for name in reported if name.startswith("memory/")} == {f"memory/{name}" for name in names}
        assert all(0.0 <= reported[f"memory/{name}"] <= 1.0 and lookup(f"memory/{name}") for name in names)
