"""Servers and clients on machines as people have them: proxies, unix sockets, other versions, other languages."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from actors.config import PolicyConfig
from actors.errors import UserError
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import to_weights
from actors.serving.client.blocking import PolicyClient
from actors.serving.options import MAX_MESSAGE_BYTES, ServeOptions, client_channel_options
from actors.serving.server.server import PolicyServer
from actors.sessions.session import PolicyError
from actors.types.actions import independent_spec
from actors.types.spaces import Spaces
from deploy.config.schema import PRESETS
from deploy.launch.endpoint import serve_options
from tests.support.learning.toy import SPACES
from tests.support.serving.node import ROOT, install
from tests.support.serving.servers import connect_outcome, serving, weights, write_file

pytestmark = pytest.mark.integration


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that does not answer, as company networks have one that leads only outside."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_a_client_reaches_a_server_on_its_machine_without_the_proxy(proxy: None, tmp_path: Path) -> None:
    for listen in ("127.0.0.1:0", f"unix:{tmp_path / 's'}"):
        with serving(listen=listen) as running:
            assert connect_outcome(running.address) == "OK"


def test_names_that_the_environment_excludes_need_no_proxy(proxy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def uses_proxy(target: str) -> bool:
        return dict(client_channel_options(target))["grpc.enable_http_proxy"] == 1

    assert [uses_proxy(t) for t in ("policy.example:1", "10.0.0.7:1", "localhost:1", "[::1]:1")] == [1, 1, 0, 0]
    monkeypatch.setenv("NO_PROXY", ".example,10.0.0.7")
    assert [uses_proxy(t) for t in ("policy.example:1", "10.0.0.7:1", "policy.org:1")] == [0, 0, 1]


def test_a_second_server_leaves_a_unix_socket_to_the_first(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with serving(listen=f"unix:{path}") as first:
        for listen in (f"unix:{path}", f"unix://{path}"):
            with pytest.raises(UserError, match="already"), serving(listen=listen):
                raise AssertionError("the second one listens as well")
        assert connect_outcome(first.address) == "OK"
    with socket.socket(socket.AF_UNIX) as killed:  # which leaves its socket behind
        killed.bind(str(path))
    with serving(listen=f"unix:{path}") as next_one:
        assert connect_outcome(next_one.address) == "OK"


def test_observations_above_the_limit_are_reported_at_the_start() -> None:
    async def serve() -> None:
        server = PolicyServer(ServeOptions(listen="127.0.0.1:0", max_message_bytes=1024), weights())
        await server.start()
        await server.run()

    with pytest.raises(UserError, match=r"requests than 1024 bytes are refused: give --max-message-bytes \d+"):
        asyncio.run(serve())


@pytest.mark.parametrize("size", [4, 480 * 640 * 3])
def test_an_endpoint_takes_the_observations_of_its_run(tmp_path: Path, size: int) -> None:
    spaces = write_file(tmp_path / "spaces.json", json.dumps({"observation_size": size, "actions": [2]}))
    general = PRESETS["general"]
    config = replace(general, external=replace(general.external, spaces=str(spaces)))
    assert serve_options(config).max_message_bytes >= max(MAX_MESSAGE_BYTES, 4 * size)


def test_a_client_of_other_spaces_is_told_both_versions() -> None:
    words = r"\(server: tamiyo .*\(client: tamiyo .*one version on both"
    with serving() as running, PolicyClient(running.address, deadline_s=5) as client:
        with pytest.raises(PolicyError, match=words) as raised:
            client.open(replace(SPACES, base_size=SPACES.base_size + 1))
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "token"),
    [
        (b"# TOKEN [EXPIRY] [SCOPE]\n\n  q7Hc2abc  2030-01-31  train # mine\nb81Xw\n", "q7Hc2abc"),
        (b"\xef\xbb\xbfq7Hc2abc\n", "q7Hc2abc"),
        ("q7Hc2abc\r\n".encode("utf-16"), "q7Hc2abc"),
    ],
    ids=["comment", "mark", "utf-16"],
)
def test_a_client_reads_the_token_file_of_its_server(tmp_path: Path, text: bytes, token: str) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(text)
    assert PolicyClient("h:1", token_file=path).metadata() == (("authorization", f"Bearer {token}"),)
    with serving(token_file=path) as running:
        assert connect_outcome(running.address, token_file=path) == "OK"


@pytest.mark.parametrize("text", [b"", b"# none\n", "tök".encode(), None])
def test_a_file_without_a_usable_token_is_refused(tmp_path: Path, text: bytes | None) -> None:
    path = tmp_path / "tokens"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(UserError, match="token"):
        PolicyClient("h:1", token_file=path).metadata()


PACKAGES = ("@grpc/grpc-js@1.14.7", "@grpc/proto-loader@0.8.1", "@bufbuild/buf@1.75.0")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("foreign"), *PACKAGES)


@pytest.mark.slow
@pytest.mark.parametrize("language", ["python", "js"])
def test_the_clients_of_the_page_run_as_printed(request: pytest.FixtureRequest, language: str) -> None:
    """On an environment without masks."""
    config = PolicyConfig(hidden_size=12, encoder_size=10, head_size=8)
    network = FactoredRecurrentActorCritic(Spaces.flat(independent_spec([2]), 4), config)
    seen = np.array([[0.0, 0.1, 0.0, -0.1]], np.float32)
    chosen = int(network.act(seen, np.zeros((1, 0), np.int64), deterministic=True)[0].actions[0, 0])
    page = (ROOT / "docs" / "serving.md").read_text()
    code, *_ = re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    with serving(to_weights(network, 1, 1, 8)) as running:
        code = code.replace("127.0.0.1:50051", running.address)
        command = [sys.executable, "-c", code]
        if language == "js":
            script = request.getfixturevalue("node") / "client.js"
            script.write_text(code)
            command = ["node", str(script)]
        printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert printed.stdout.startswith(f"[{chosen}] " if language == "python" else f"{chosen}\n"), printed.stderr


@pytest.mark.slow
def test_buf_lint_passes(node: Path) -> None:
    command = [node / "node_modules" / ".bin" / "buf", "lint", "proto"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
