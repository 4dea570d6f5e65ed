"""`tamiyo doctor`: failed checks determine the exit status, and an exception in a check is a failure."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from deploy.commands.admin import doctor
from deploy.commands.admin.doctor import Lacking


def lack() -> str:
    raise Lacking("no driver")


def fail() -> str:
    raise OSError("gone")


@pytest.mark.parametrize(("check", "words", "status"), [(lack, "no driver", 0), (fail, "OSError: gone", 1)])
def test_only_a_failed_check_gives_status_one(
    check: Callable[[], str], words: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = {"first": check, "redis server": doctor.CHECKS["redis server"]}
    monkeypatch.setattr(doctor, "CHECKS", checks)
    out = io.StringIO()
    assert doctor.doctor(Console(file=out, width=200)) == status
    assert words in out.getvalue()
    assert " starts " in out.getvalue()  # the embedded server
