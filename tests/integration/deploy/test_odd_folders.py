"""Ray on one machine, where the interpreter's folder needs quoting or the temporary folder is long."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.commands.admin.doctor import RAY_PROBE

pytestmark = pytest.mark.integration


def test_ray_runs_in_folders_with_a_space_an_apostrophe_and_a_long_name(tmp_path: Path) -> None:
    venv, temporary = tmp_path / "My Friend's files" / "venv", tmp_path / ("long" * 20)
    venv.parent.mkdir()
    venv.symlink_to(sys.prefix)
    temporary.mkdir()
    probe = subprocess.run(
        [venv / "bin" / "python", "-c", RAY_PROBE],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert probe.returncode == 0, probe.stderr
    assert probe.stdout.strip().endswith("CPUs")
