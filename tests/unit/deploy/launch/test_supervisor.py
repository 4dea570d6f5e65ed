"""The end of a run whose folder can no longer be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from deploy import cli
from deploy.launch.supervision.supervisor import Phase, Supervisor


def raise_full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_run_ends_whose_error_cannot_be_written(tmp_path: Path) -> None:
    """Otherwise whoever follows the run would wait for its end forever."""
    supervisor: Any = object.__new__(Supervisor)
    supervisor._run_dir = tmp_path / "gone"
    supervisor._train = raise_full
    supervisor._run()
    assert supervisor._phase is Phase.FAILED
    assert "No space left" in supervisor._error
    assert "error.txt cannot be written either" in supervisor._error


def test_a_full_disk_is_one_line_of_any_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(cli.COMMANDS, "report", lambda args: raise_full())
    assert cli.main(["report"]) == 2
    assert "free some space" in capsys.readouterr().err
