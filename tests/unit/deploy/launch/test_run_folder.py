"""A run folder belongs to one run, and nothing is made where a run cannot start."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import ray

from actors.errors import UserError
from deploy.config.schema import Config
from deploy.launch.local import train
from deploy.launch.prepare import open_run
from deploy.launch.signals import own_signals, stop_on_signal


def config(root: Path, name: str = "") -> Config:
    return replace(Config(), run=replace(Config().run, root=str(root), name=name))


def test_unnamed_runs_that_start_in_one_second_have_their_own_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "strftime", lambda *_: "20260101-120000")
    folders = [open_run(config(tmp_path), None).name for _ in range(3)]
    assert folders == ["20260101-120000", "20260101-120000-1", "20260101-120000-2"]


def test_a_run_that_trains_is_neither_resumed_nor_started_again(tmp_path: Path) -> None:
    with ExitStack() as first:
        folder = open_run(config(tmp_path, "mine"), None, first)
        for resume in (folder, None):
            with ExitStack() as second, pytest.raises(UserError, match="another process of this machine trains in"):
                open_run(config(tmp_path, "mine"), resume, second)
    with ExitStack() as second:
        assert open_run(config(tmp_path, "mine"), folder, second) == folder


def test_a_program_that_uses_ray_itself_is_told_before_a_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    with pytest.raises(UserError, match=r"ray\.shutdown"):
        train(config(tmp_path, "mine"))
    assert list(tmp_path.iterdir()) == []


def test_a_run_in_another_thread_leaves_signals_to_the_program() -> None:
    def run() -> bool:
        with own_signals(), stop_on_signal() as stop:
            return stop.is_set()

    with ThreadPoolExecutor() as threads:
        assert threads.submit(run).result() is False
