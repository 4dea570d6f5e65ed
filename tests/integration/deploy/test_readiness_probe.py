"""The readiness probe of the Kubernetes manifest, against a server with TLS and tokens."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.support.serving.certificates import Authority
from tests.support.serving.servers import FakeWeightStore, serving, weights, write_file

pytestmark = pytest.mark.integration
MANIFEST = Path(__file__).parents[3] / "deploy" / "kuberay" / "policy-server.yaml"


def test_a_policy_server_is_ready_once_it_has_weights(tmp_path: Path) -> None:
    deployment = next(m for m in yaml.safe_load_all(MANIFEST.read_text()) if m["kind"] == "Deployment")
    probe = deployment["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["exec"]["command"]
    assert probe[:2] == ["python", "-c"]
    authority = Authority(tmp_path)
    certificate, key = authority.issue("policy", "tamiyo-policy")
    store = FakeWeightStore()
    options = {"tls_cert": certificate, "tls_key": key, "token_file": write_file(tmp_path / "tokens", "good\n")}
    with serving(store, loaded=False, **options) as running:
        port = running.address.rpartition(":")[2]
        script = probe[2].replace("/run/tamiyo/ca.crt", str(authority.certificate)).replace("50051", port)

        def ready() -> bool:
            return subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0

        assert not ready()
        store.newest = weights()
        deadline = time.monotonic() + 30.0
        while not ready():
            assert time.monotonic() < deadline
            time.sleep(0.2)
