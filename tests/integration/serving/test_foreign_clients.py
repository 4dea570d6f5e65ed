"""Clients of the .proto files in Node, the clients that docs/serving.md prints, and checks of these files with buf."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict

from actors.config import PolicyConfig
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import to_weights
from actors.serving.messages import step_request
from actors.sessions.local import LocalPolicy
from actors.types.actions import independent_spec
from actors.types.spaces import Spaces
from tests.support.learning.toy import SPACES, toy_network
from tests.support.serving.node import install
from tests.support.serving.servers import serving, step_inputs

pytestmark = [pytest.mark.integration, pytest.mark.slow]
ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("foreign_client.js")
PACKAGES = ("@grpc/grpc-js@1.14.7", "@grpc/proto-loader@0.8.1", "@bufbuild/buf@1.75.0")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("foreign"), *PACKAGES)


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


def as_json(step: int) -> dict[str, Any]:
    request = MessageToDict(
        step_request("", step, *step_inputs(0, step), True, False), preserving_proto_field_name=True
    )
    return {name: value for name, value in request.items() if isinstance(value, dict)}


def test_a_node_client_steps_a_session(node: Path) -> None:
    shutil.copy(SCRIPT, node)
    local = LocalPolicy(toy_network(), 1).open(SPACES)
    expected = [local.step(*step_inputs(0, step)).action.tolist() for step in range(5)]
    with serving() as running:
        steps = json.dumps([as_json(step) for step in range(5)])
        result = subprocess.run(
            ["node", SCRIPT.name, str(ROOT / "proto"), running.address, steps],
            cwd=node, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["heads"] == list(SPACES.action.names)
    assert report["answers"] == report["streamed"] == expected
    assert report["refused"] == {"code": "FAILED_PRECONDITION", "details": 1}


def buf(node: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(node / "node_modules" / ".bin" / "buf"), *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_buf_lint_passes(node: Path) -> None:
    result = buf(node, "lint", "proto")
    assert (result.returncode, result.stdout) == (0, ""), result.stderr


def test_no_breaking_change_since_the_last_release(node: Path, tmp_path: Path) -> None:
    tag = next(iter(git("tag", "--list", "v*", "--sort=-creatordate").split()), None)
    if tag is None or not git("ls-tree", tag, "proto"):
        pytest.skip("there is no release to compare with yet")
    archive = tmp_path / "released.tar"
    archive.write_bytes(
        subprocess.run(["git", "archive", tag, "proto"], cwd=ROOT, check=True, capture_output=True).stdout
    )
    result = buf(node, "breaking", "proto", "--against", f"{archive}#subdir=proto")
    assert (result.returncode, result.stdout) == (0, ""), result.stderr


def git(*arguments: Sequence[str] | str) -> str:
    result = subprocess.run(["git", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, check=False)
    return result.stdout.strip()
