"""`ray up` and `ray down` for real, on two machines made of namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]


def test_up_train_down() -> None:
    script = Path(__file__).with_name("run.sh")
    ended = subprocess.run(
        ["bash", str(script)],
        env={**os.environ, "PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(ended.stdout)
    if ended.returncode == 2 and " is missing" in ended.stdout:  # a tool that the machine lacks
        pytest.skip(ended.stdout.strip().splitlines()[-1])
    assert ended.returncode == 0, ended.stdout
    assert "ray down: nothing is left" in ended.stdout
