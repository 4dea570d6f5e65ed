"""Files in UTF-16 or with a mark at their start, locales without our symbols, and folders that cannot be synced."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from actors.errors import UserError
from actors.transport.redis_server import password_from
from deploy import cli
from deploy.config.user_file import read_text
from learner.run.checkpoint import write_durably


def test_passwords_and_settings_are_read_as_windows_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    monkeypatch.setenv("A_PASSWORD_FILE", str(path))
    for encoding, mark in (("utf-8", b""), ("utf-8-sig", b""), ("utf-16", b""), ("utf-16-le", b"\xff\xfe")):
        path.write_bytes(mark + "gehäim\r\n".encode(encoding))
        assert password_from("A_PASSWORD") == "gehäim"
        assert read_text(path) == "gehäim\r\n"
    path.write_bytes("gehäim".encode("latin-1"))
    with pytest.raises(UserError, match="is not a text in UTF-8"):
        password_from("A_PASSWORD")


def test_symbols_that_the_locale_lacks_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, "latin-1"))
    monkeypatch.setitem(cli.COMMANDS, "tasks", lambda args: print("ä █", flush=True) or 0)
    assert cli.main(["tasks"]) == 0
    assert out.getvalue().decode("latin-1").strip() == "ä ?"


@pytest.mark.parametrize(("code", "fails"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_folder_that_cannot_be_synced_holds_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, fails: bool
) -> None:
    fsync = os.fsync

    def refuse_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    with pytest.raises(OSError, match="Input/output") if fails else nullcontext():
        write_durably(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"
