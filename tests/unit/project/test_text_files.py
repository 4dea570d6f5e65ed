"""Files in UTF-16 or with a mark at their start, locales without our symbols, and folders that cannot be synced."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from pathlib import Path

import pytest

from actors.errors import UserError
from actors.transport.redis_server import password_from
from deploy import cli
from deploy.config.user_file import read_text
from learner.run.checkpoint import write_durably


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
def test_passwords_and_settings_are_read_as_windows_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xff\xfe" * (encoding == "utf-16-le") + "gehäim\r\n".encode(encoding))
    monkeypatch.setenv("A_PASSWORD_FILE", str(path))
    assert password_from("A_PASSWORD") == "gehäim"
    assert read_text(path) == "gehäim\r\n"


def test_a_password_file_that_is_no_text_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes("gehäim".encode("latin-1"))
    monkeypatch.setenv("A_PASSWORD_FILE", str(tmp_path / "file"))
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
    if fails:
        with pytest.raises(OSError, match="Input/output"):
            write_durably(tmp_path / "file", b"content")
    else:
        write_durably(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"
