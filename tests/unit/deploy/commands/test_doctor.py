"""`tamiyo doctor`: failed checks determine the exit status, and an exception in a probe is a failed check."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from deploy.commands.admin import doctor
from deploy.commands.admin.doctor import Check


def run(monkeypatch: pytest.MonkeyPatch, *found: Check) -> tuple[int, str]:
    out = io.StringIO()
    monkeypatch.setattr(doctor, "checks", lambda: iter(found))
    return doctor.doctor(Console(file=out, width=100)), out.getvalue()


def test_only_a_failed_check_gives_status_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fine, odd = Check("torch", "ok", "2.13"), Check("cuda", "warn", "no driver")
    status, text = run(monkeypatch, fine, odd)
    assert status == 0
    assert "no driver" in text
    assert run(monkeypatch, fine, Check("redis server", "fail", "none"))[0] == 1


def test_an_exception_in_a_probe_is_a_failed_check() -> None:
    def _shelves() -> Check:
        raise OSError("gone")

    assert doctor._guarded(_shelves) == Check("shelves", "fail", "OSError: gone")


def test_a_missing_package_says_what_to_do() -> None:
    assert doctor._package("surely-not-installed").status == "fail"
    assert "make install" in doctor._package("surely-not-installed").detail


def test_the_embedded_server_is_found_and_starts() -> None:
    check = doctor._server()
    assert check.status == "ok"
    assert "starts" in check.detail
