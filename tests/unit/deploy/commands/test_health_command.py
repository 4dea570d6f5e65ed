"""`tamiyo health` against servers that are well, ill, and absent."""

from __future__ import annotations

import http.server
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import yaml
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from deploy import cli
from deploy.commands.admin.certificate import self_signed
from deploy.commands.admin.health import main as health_of
from tests.support.ports import free_port

MANIFEST = Path(__file__).parents[4] / "deploy" / "kuberay" / "policy-server.yaml"


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/well" else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def page() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server, ThreadPoolExecutor(1) as thread:
        thread.submit(server.serve_forever)
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def policy(certificate: Path, *hosts: str) -> Iterator[tuple[int, health.HealthServicer]]:
    """The port of a gRPC server with a certificate of ours, and its word on its health."""
    pair = self_signed(hosts)
    certificate.write_bytes(pair.certificate)
    server, servicer = grpc.server(ThreadPoolExecutor(1)), health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(pair.key, pair.certificate)]))
    server.start()
    yield port, servicer
    server.stop(None).wait()


def test_http_is_well_with_status_200_alone(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    addresses = [f"{page}/well", f"{page}/ill", f"http://{nobody}", f"grpc://{nobody}"]
    assert cli.main(["health", addresses[0]]) == 0
    assert cli.main(["health", *addresses, "--timeout", "1"]) == 1
    _, *said = [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()]
    assert said[:2] == ["healthy", "returned status 503"]
    assert [words[:15] for words in said[2:]] == ["does not answer"] * 2


def test_a_policy_server_is_well_while_it_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # which the check does not use
    monkeypatch.setenv("TAMIYO_HEALTH_CA", str(tmp_path / "serve.crt"))
    with policy(tmp_path / "serve.crt", "localhost", "127.0.0.1") as (port, servicer):
        monkeypatch.setenv("TAMIYO_HEALTH", f"grpcs://127.0.0.1:{port}")
        assert cli.main(["health"]) == 0
        servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        assert cli.main(["health"]) == 1
        servicer.set("", health_pb2.HealthCheckResponse.SERVING)
        (tmp_path / "serve.crt").write_bytes(self_signed(["127.0.0.1"]).certificate)
        assert cli.main(["health"]) == 1  # another's certificate


def test_the_readiness_probe_of_the_kubernetes_manifest(tmp_path: Path) -> None:
    """The certificate names the service, not the address at which the probe finds it."""
    deployment = next(m for m in yaml.safe_load_all(MANIFEST.read_text()) if m["kind"] == "Deployment")
    probe = deployment["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["exec"]["command"]
    assert probe[:3] == ["python", "-m", "deploy.commands.admin.health"]
    with policy(tmp_path / "ca.crt", "tamiyo-policy") as (port, servicer):
        words = [w.replace("/run/tamiyo", str(tmp_path)).replace("50051", str(port)) for w in probe[3:]]
        assert health_of(words) == 0
        servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        assert health_of(words) == 1
