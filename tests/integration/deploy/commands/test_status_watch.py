"""`tamiyo status --watch`: it follows the store, says when that is away, and ends with Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from actors.transport.redis import connect
from deploy.launch.embedded_redis import EmbeddedRedis
from tests.support.launching import Command, tamiyo
from tests.support.queueing import put, take_ids

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def looks(command: Command) -> list[dict[str, Any]]:
    """Every line is one look, whole."""
    return [json.loads(line) for line in command.out.splitlines(keepends=True) if line.endswith("\n")]


def test_each_second_a_line_of_json_also_after_the_store_was_away(tmp_path: Path) -> None:
    with EmbeddedRedis(append_only=True) as server:
        transport = connect(server.url, None, "watched")
        transport.open_generation(-1, "learner")
        with tamiyo(tmp_path, "status", "--redis", server.url, "--watch", "--json") as watch:
            watch.wait_for(lambda: len(looks(watch)) >= 2)
            assert looks(watch)[-1]["ledger"]["accepted"] == 0
            put(transport, *range(6))
            watch.wait_for(lambda: looks(watch)[-1]["ledger"]["queued"] == 6)
            assert max(look["rates"]["accepted"] for look in looks(watch)) > 0
            transport.ack(take_ids(transport, 4))
            watch.wait_for(lambda: looks(watch)[-1]["ledger"]["trained"] == 4)
            os.kill(server.pid, signal.SIGKILL)
            watch.wait_for(lambda: "trying again" in watch.err)
            before = len(looks(watch))
            os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
            assert server.restart_if_dead()
            watch.wait_for(lambda: len(looks(watch)) > before)
            last = looks(watch)[-1]
            assert (last["run"], last["exact"], last["ledger"]["trained"]) == ("watched", True, 4)
            watch.process.send_signal(signal.SIGINT)
            assert watch.wait(30) == 130
            assert "Traceback" not in watch.err


def test_without_json_a_panel_is_redrawn(tmp_path: Path) -> None:
    with EmbeddedRedis() as server:
        transport = connect(server.url, None, "watched")
        transport.open_generation(-1, "learner")
        put(transport, 0, 1)
        with tamiyo(tmp_path, "status", "--redis", server.url, "--watch", FORCE_COLOR="1", COLUMNS="200") as watch:
            watch.wait_for(lambda: "queued 2" in plain(watch.out))
            put(transport, 2)
            watch.wait_for(lambda: "queued 3" in plain(watch.out))
            watch.process.send_signal(signal.SIGTERM)
            watch.wait(30)
        assert "accepted 3 = " in plain(watch.out)
        assert watch.err == ""


def plain(text: str) -> str:
    """Without colors, frames and what moves the cursor."""
    return " ".join(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|[│╭╮╰╯─]", " ", text).split())
