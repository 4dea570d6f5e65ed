"""The clients that docs/serving.md prints, and a check of the .proto files with buf."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from actors.config import PolicyConfig
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import to_weights
from actors.types.actions import independent_spec
from actors.types.spaces import Spaces
from tests.support.serving.node import install
from tests.support.serving.servers import serving

pytestmark = [pytest.mark.integration, pytest.mark.slow]
ROOT = Path(__file__).parents[3]
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


def test_buf_lint_passes(node: Path) -> None:
    command = [node / "node_modules" / ".bin" / "buf", "lint", "proto"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
