"""The initial weights: orthogonal matrices of the gains that were chosen, biases of 0, forget gates of 1."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
from torch import Tensor

from actors.config import PolicyConfig
from actors.policy.network import FactoredRecurrentActorCritic
from tests.support.learning.toy import SPACES

HIDDEN = 12
GAINS = {  # by the end of the name, first match
    "encoder.base.0.weight": sqrt(2.0),
    "encoder.slot.0.weight": sqrt(2.0),
    "memory.inputs.weight": 1.0,
    "memory.read.weight": 1.0,
    "critic.0.weight": sqrt(2.0),
    "critic.2.weight": 1.0,
    "0.weight": sqrt(2.0),  # first layers of the heads and of the feedforward core
    "2.weight": 0.01,  # outputs of the heads: nearly uniform choices
}


def check_gain(name: str, weight: Tensor, gain: float) -> None:
    """Orthogonal rows or columns, times the gain: every singular value is the gain."""
    found = torch.linalg.svdvals(weight)
    assert torch.allclose(found, torch.full_like(found, gain), rtol=1e-4), name


@pytest.mark.parametrize("core", ["feedforward", "lstm", "lstm+memory"])
def test_initial_weights(core: str) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": HIDDEN, "encoder_size": 10, "memory_cells": 4, "memory_size": 5}
    layers = 1 if core == "feedforward" else 2
    network = FactoredRecurrentActorCritic(SPACES, PolicyConfig(core=core, num_layers=layers, **sizes))
    for name, p in network.named_parameters():
        if "lstm.weight" in name:
            for gate in p.chunk(4):
                check_gain(name, gate, 1.0)
        elif "lstm.bias" in name:
            expected = torch.zeros(4 * HIDDEN)
            expected[HIDDEN : 2 * HIDDEN] = 1.0
            assert torch.equal(p, expected), name
        elif name.endswith("bias"):
            assert not p.any(), name
        elif p.ndim == 2 and "embedding" not in name and "blueprint" not in name:
            check_gain(name, p, next(gain for end, gain in GAINS.items() if name.endswith(end)))
