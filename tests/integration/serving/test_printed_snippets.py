"""The clients on the page about the policy server run as printed, on an environment without masks."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from actors.config import PolicyConfig
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import to_weights
from actors.types.actions import independent_spec
from actors.types.spaces import Spaces
from tests.support.serving.node import install
from tests.support.serving.servers import FakeWeightStore, serving

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]
SMALL = PolicyConfig(hidden_size=12, encoder_size=10, head_size=8)
NETWORK = FactoredRecurrentActorCritic(Spaces.flat(independent_spec([2]), 4), SMALL)
SEEN = np.array([[0.0, 0.1, 0.0, -0.1]], np.float32)
CHOSEN = int(NETWORK.act(SEEN, np.zeros((1, 0), np.int64), deterministic=True)[0].actions[0, 0])


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(FakeWeightStore(to_weights(NETWORK, 1, 1, 8))) as running:
        yield running.address


def snippet(language: str, address: str) -> str:
    page = (ROOT / "docs" / "serving.md").read_text()
    (code,) = re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return code.replace("127.0.0.1:50051", address)


def test_the_python_client_as_printed(address: str) -> None:
    command = [sys.executable, "-c", snippet("python", address)]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert printed.stdout.startswith(f"[{CHOSEN}] "), printed.stderr


@pytest.mark.slow
def test_the_node_client_as_printed(address: str, tmp_path: Path) -> None:
    node = install(tmp_path, "@grpc/grpc-js@1.14.7", "@grpc/proto-loader@0.8.1")
    (node / "proto").symlink_to(ROOT / "proto")
    (node / "client.js").write_text(snippet("js", address))
    printed = subprocess.run(["node", "client.js"], cwd=node, capture_output=True, text=True, timeout=60, check=False)
    assert printed.stdout == f"{CHOSEN}\n", printed.stderr
