"""Weights are compared with the network that they describe before it is built."""

from __future__ import annotations

import subprocess
import sys

import pytest

from actors.config import PolicyConfig
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import _require_shapes, to_weights
from actors.slots.spaces import seed_spaces

SCRIPT = """
import sys
from tests.unit.policy.test_checked_shapes import check
check()
print("torch._dynamo" in sys.modules)
"""


def check() -> None:
    """Check the weights of a network of the default configuration."""
    spaces = seed_spaces(3)
    weights = to_weights(FactoredRecurrentActorCritic(spaces, PolicyConfig()), 0, 1, 1)
    _require_shapes(weights, spaces, PolicyConfig())


@pytest.mark.long  # a process that imports PyTorch
def test_the_check_does_not_import_the_compiler() -> None:
    """It would take more than a second of an actor's start."""
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=120)
    assert ran.stdout.split() == ["False"]
