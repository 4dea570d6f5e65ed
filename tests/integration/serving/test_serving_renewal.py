"""Tokens, certificates and keys that are replaced while a server runs."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from structlog.testing import capture_logs

from actors.errors import UserError
from actors.serving.client.asynchronous import AsyncPolicyClient
from actors.serving.client.blocking import PolicyClient
from actors.serving.client.endpoint import METHODS
from actors.serving.server.credentials import parse_tokens
from actors.serving.status import error_info
from actors.sessions.refusal import Reason
from actors.sessions.session import PolicyError
from deploy.commands.admin.health import failure_reason
from deploy.commands.admin.secrets import write_secrets
from tests.support.learning.toy import SPACES
from tests.support.serving.calls import bearer, half_open, outcome
from tests.support.serving.certificates import Authority
from tests.support.serving.servers import connect_outcome, serving, step_inputs, write_file

pytestmark = pytest.mark.integration
RELOAD_S = 1.2  # by then the server has checked its token file again


def replace(path: Path, text: str) -> None:
    """Replace a file atomically, like editors and mounted secrets do."""
    write_file(path.with_suffix(".new"), text).replace(path)


def test_streams_of_a_removed_token_are_ended(tmp_path: Path) -> None:
    """Active streams, silent ones, and those of other services. Streams of other tokens continue."""
    file = write_file(tmp_path / "tokens", "old\nother\n")

    async def stepping(address: str) -> Reason | str:
        async with AsyncPolicyClient(address, token="old", stream=True, deadline_s=5) as client:
            session = await client.open(SPACES)
            await session.step(*step_inputs(0, 0))
            replace(file, "other\n")
            for step in range(1, 1000):
                try:
                    await session.step(*step_inputs(0, step))
                except PolicyError as error:
                    return error.reason
                await asyncio.sleep(0.01)
        return "answered to the end"

    with (
        serving(token_file=file) as running,
        grpc.insecure_channel(running.address) as channel,
        half_open([channel], METHODS["StepStream"][0], 2, "old") as silent,
        half_open([channel], METHODS["StepStream"][0], 1, "other") as others,
    ):
        requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        assert list(stub.ServerReflectionInfo(requests, timeout=5, metadata=bearer("old")))
        path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        with half_open([channel], path, 1, "old") as reflections:
            assert asyncio.run(stepping(running.address)) == Reason.TOKEN_INVALID
            assert [outcome(call) for call in (*silent, *reflections)] == [Reason.TOKEN_INVALID] * 3
        assert others[0].is_active()


def test_a_missing_or_malformed_token_file_admits_no_client_and_is_logged(tmp_path: Path) -> None:
    file = write_file(tmp_path / "tokens", "first\n")
    with serving(token_file=file) as running, capture_logs() as logs:
        file.unlink()
        time.sleep(RELOAD_S)
        assert connect_outcome(running.address, token="first") == Reason.TOKEN_INVALID
        replace(file, "second\nfirst at-no-date\nthird 2999-01-01\n")
        time.sleep(RELOAD_S)
        assert connect_outcome(running.address, token="first") == Reason.TOKEN_INVALID
        assert (
            connect_outcome(running.address, token="second") == connect_outcome(running.address, token="third") == "OK"
        )
        replace(file, "")
        time.sleep(RELOAD_S)
        assert connect_outcome(running.address, token="second") == Reason.TOKEN_INVALID
        replace(file, "fourth\n")
        time.sleep(RELOAD_S)
        assert connect_outcome(running.address, token="fourth") == "OK"
    errors = [log for log in logs if log["log_level"] == "error"]
    assert [log["event"].partition(":")[0] for log in errors] == ["token file unreadable", "token file malformed"]
    assert errors[1]["lines"] == [2]
    assert not any(word in str(log) for log in logs for word in ("at-no-date", "second", "third", "fourth"))
    reads = [(log["tokens"], log["removed"]) for log in logs if log["event"] == "token file reloaded"]
    assert reads == [(2, 0), (0, 2), (1, 0)]


def test_a_malformed_line_of_a_token_file_does_not_affect_the_others(tmp_path: Path) -> None:
    found = parse_tokens(
        b"a\n\n# note\n\xff\xfe\nb 2030-01-31 # until then\n\tc \nd 2030-13-01\ne 2030-01-31T00:00:00+02:00\n"
    )
    assert found.malformed == [4, 7]
    end = 1896048000.0  # `date -u -d 2030-01-31 +%s`
    assert sorted(found.expiries.values()) == [end - 7200, end, float("inf"), float("inf")]
    for text, message in (("a b", "line 1"), ("# none", "contains no token")):
        with pytest.raises(UserError, match=message), serving(token_file=write_file(tmp_path / "tokens", text)):
            pass


def test_a_replaced_certificate_is_used_for_the_next_connection(tmp_path: Path) -> None:
    """Health checks run all the time while `tamiyo secrets` replaces the files one after the other."""
    hosts = ["localhost", "127.0.0.1"]
    write_secrets(tmp_path, hosts)
    cert, key = tmp_path / "serve.crt", tmp_path / "serve.key"
    failures: list[str] = []
    checked, stop = threading.Semaphore(0), threading.Event()

    with serving(tls_cert=cert, tls_key=key) as running:

        def check() -> None:
            while not stop.is_set():
                failures.append(failure_reason(f"grpcs://{running.address}", cert, 5.0))
                checked.release()

        checks = threading.Thread(target=check)
        with PolicyClient(running.address, root_certificates=cert, deadline_s=5) as client:
            session = client.open(SPACES)
            session.step(*step_inputs(0, 0))
            checks.start()
            try:
                for i in range(6):
                    hosts.append(f"host{i}.example.org")
                    assert write_secrets(tmp_path, hosts) == ["serve.key", "serve.crt"]
                    for _ in range(4):
                        assert checked.acquire(timeout=20)
            finally:
                stop.set()
                checks.join()
            assert session.step(*step_inputs(0, 1)).step_index == 1  # on the existing connection
        with PolicyClient(running.address, root_certificates=cert, deadline_s=5) as client:
            assert client.open(SPACES).step(*step_inputs(0, 0)).step_index == 0
    assert len(failures) >= 24
    assert set(failures) == {""}


def test_files_that_do_not_match_leave_the_certificate_in_use(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (cert, key), (other, other_key) = authority.issue("server"), authority.issue("other")
    address = ""
    with serving(tls_cert=cert, tls_key=key) as running, capture_logs() as logs:
        address = f"grpcs://{running.address}"
        key.write_bytes(other_key.read_bytes())
        assert failure_reason(address, authority.certificate, 5.0) == ""
        cert.write_text("no certificate")
        assert failure_reason(address, authority.certificate, 5.0) == ""
        cert.unlink()
        assert failure_reason(address, authority.certificate, 5.0) == ""
        cert.write_bytes(other.read_bytes())
        assert failure_reason(address, authority.certificate, 5.0) == ""
    events = [log["event"] for log in logs if log["event"].startswith("certificate")]
    assert events == ["certificate not reloaded: the previous one stays in use"] * 3 + ["certificate reloaded"]
    key.write_bytes(b"no key")
    with pytest.raises(UserError, match="cannot use"), serving(tls_cert=cert, tls_key=key):
        pass


def test_reflection_requires_a_token_if_the_server_does(tmp_path: Path) -> None:
    with (
        serving(token_file=write_file(tmp_path / "tokens", "good\n")) as running,
        grpc.insecure_channel(running.address) as channel,
    ):
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.ServerReflectionInfo(iter([request]), timeout=5))
        assert error_info(caught.value).reason == Reason.TOKEN_MISSING
        assert list(stub.ServerReflectionInfo(iter([request]), timeout=5, metadata=bearer("good")))
