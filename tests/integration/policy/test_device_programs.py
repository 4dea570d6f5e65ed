"""No program leaves a tensor on the CPU when its network, or its fleet, is on a device."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

import pytest
import torch

from tests.support.learning.device_programs import LONG_HOSTS, PROGRAMS, QUICK, masks_left_behind, precision_settings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
QUICK_NAMES, LONG_NAMES = ([own.__name__ for own in programs] for programs in (QUICK, LONG_HOSTS))


def run(names: Sequence[str]) -> dict[str, str]:
    """Return what went wrong on the pretended device, by program; empty where nothing did."""
    command = [sys.executable, "-m", "tests.support.learning.device_programs", *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, check=True)
    errors: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return errors


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    return run([*QUICK_NAMES, masks_left_behind.__name__, precision_settings.__name__])


@pytest.mark.parametrize("name", QUICK_NAMES)
def test_a_program_runs_on_the_device_and_computes_what_the_cpu_computes(found: dict[str, str], name: str) -> None:
    assert not found[name], found[name]


def test_a_tensor_that_stays_on_the_cpu_is_caught(found: dict[str, str]) -> None:
    assert "a tensor of the CPU" in found[masks_left_behind.__name__]


def test_both_of_pytorchs_settings_of_tf32_are_set_and_restored(found: dict[str, str]) -> None:
    assert not found[precision_settings.__name__], found[precision_settings.__name__]


@pytest.mark.long
def test_long_programs_run_on_the_device_and_compute_what_the_cpu_computes() -> None:
    failed = {name: error for name, error in run(LONG_NAMES).items() if error}
    assert not failed, "\n".join(failed.values())


@pytest.mark.cuda
@pytest.mark.parametrize("name", [*QUICK_NAMES, *LONG_NAMES])
def test_a_program_runs_on_cuda(name: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    PROGRAMS[name](torch.device("cuda"))
