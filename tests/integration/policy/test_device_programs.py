"""No program of the policy leaves a tensor on the CPU when its network is on a device."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from tests.support.learning.device_programs import PROGRAMS, stepper_left_behind

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    """What went wrong on the pretended device, by program; empty where nothing did."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.learning.device_programs"],
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
    )
    errors: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return errors


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != stepper_left_behind.__name__])
def test_a_program_runs_on_the_device_and_computes_what_the_cpu_computes(found: dict[str, str], name: str) -> None:
    assert not found[name], found[name]


def test_a_tensor_that_stays_on_the_cpu_is_caught(found: dict[str, str]) -> None:
    assert "a tensor of the CPU" in found[stepper_left_behind.__name__]


@pytest.mark.cuda
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != stepper_left_behind.__name__])
def test_a_program_runs_on_cuda(name: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    PROGRAMS[name](torch.device("cuda"))
