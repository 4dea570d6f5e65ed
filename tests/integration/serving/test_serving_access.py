"""Who reaches a server, by TLS, client certificates and tokens, also as they are replaced; and whose a session is."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from structlog.testing import capture_logs

from actors.config import ConfigError
from actors.errors import UserError
from actors.serving.client.asynchronous import AsyncPolicyClient
from actors.serving.client.blocking import PolicyClient
from actors.serving.methods import method_path
from actors.serving.options import ServeOptions
from actors.serving.server import credentials
from actors.serving.server.credentials import parse_tokens
from actors.serving.status import error_info
from actors.sessions.refusal import Reason
from actors.sessions.session import PolicyError
from actors.wire import policy_pb2
from deploy.commands.admin.health import failure_reason
from deploy.commands.admin.secrets import write_secrets
from tests.support.learning.toy import SPACES
from tests.support.serving.calls import bearer, half_open, outcome
from tests.support.serving.certificates import Authority
from tests.support.serving.servers import connect_outcome, serving, step_inputs, write_file
from tests.support.serving.training_sessions import RawSession, endpoint, refused
from tests.support.waiting import wait_for

pytestmark = pytest.mark.integration
WAIT_S = 0.2  # by then the server has checked its token file again


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers check their token file ten times as often."""
    monkeypatch.setattr(credentials, "RELOAD_S", 0.1)


def replace(path: Path, text: str) -> None:
    """Replace a file atomically, like editors and mounted secrets do."""
    write_file(path.with_suffix(".new"), text).replace(path)


def test_non_loopback_addresses_require_tls_and_tokens() -> None:
    here = Path(__file__)
    tls: dict[str, Any] = {"tls_cert": here, "tls_key": here}
    tokens: dict[str, Any] = {"token_file": here}
    both, one, other = "--tls-cert and --tls-key, --token-file", "give --token-file", "give --tls-cert"
    for listen in ("0.0.0.0:1", "[::]:1", "example.org:50051", "192.168.1.1:0", ":50051"):
        for given, told in (({}, both), (tls, one), (tokens, other)):
            with pytest.raises(ConfigError, match=told):
                ServeOptions(listen=listen, **given)
        ServeOptions(listen=listen, insecure=True)
        ServeOptions(listen=listen, **tls, **tokens)
    for listen in ("127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/tmp/a"):
        ServeOptions(listen=listen)


def test_tokens_are_required_and_the_file_is_read_again(tmp_path: Path, eager: None) -> None:
    """A missing or malformed file admits nobody whom it does not name, and is logged without a token."""
    file = write_file(tmp_path / "tokens", "first # ours\nstale 2020-01-31\n")
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    with serving(token_file=file) as running, capture_logs() as logs, grpc.insecure_channel(running.address) as channel:

        def outcomes(*tokens: str) -> list[str]:
            return [connect_outcome(running.address, token=token) for token in tokens]

        refusals = [Reason.TOKEN_MISSING, Reason.TOKEN_INVALID, Reason.TOKEN_EXPIRED]
        assert outcomes("first", "", "wrong", "stale") == ["OK", *refusals]
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        with pytest.raises(grpc.RpcError) as caught:
            list(reflect(iter([request]), timeout=5))
        assert error_info(caught.value).reason == Reason.TOKEN_MISSING
        assert list(reflect(iter([request]), timeout=5, metadata=bearer("first")))
        file.unlink()
        time.sleep(WAIT_S)
        assert outcomes("first") == [Reason.TOKEN_INVALID]
        replace(file, "second\nfirst at-no-date\nthird 2999-01-01\n")
        time.sleep(WAIT_S)
        assert outcomes("first", "second", "third") == [Reason.TOKEN_INVALID, "OK", "OK"]
        replace(file, "")
        time.sleep(WAIT_S)
        assert outcomes("second") == [Reason.TOKEN_INVALID]
    errors = [log for log in logs if log["log_level"] == "error"]
    assert [log["event"].partition(":")[0] for log in errors] == ["token file unreadable", "token file malformed"]
    assert errors[1]["lines"] == [2]
    assert not any(word in str(log) for log in logs for word in ("at-no-date", "second", "third"))
    reads = [(log["tokens"], log["removed"]) for log in logs if log["event"] == "token file reloaded"]
    assert reads == [(2, 0), (0, 2)]


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


def test_streams_end_with_their_token(tmp_path: Path) -> None:
    """Active streams and silent ones, of tokens that are removed or expire. Those of other tokens continue."""
    soon = (datetime.now(UTC) + timedelta(seconds=2)).isoformat()
    file = write_file(tmp_path / "tokens", f"old\nbrief {soon}\nother\n")

    async def step_to_the_end(address: str) -> None:
        async with AsyncPolicyClient(address, token="old", stream=True, deadline_s=5) as client:
            session = await client.open(SPACES)
            await session.step(*step_inputs(0, 0))
            replace(file, f"brief {soon}\nother\n")
            for step in range(1, 1000):
                await session.step(*step_inputs(0, step))
                await asyncio.sleep(0.01)

    path = method_path("StepStream")
    with (
        serving(token_file=file) as running,
        grpc.insecure_channel(running.address) as channel,
        half_open([channel], path, 2, "old") as old,
        half_open([channel], path, 1, "brief") as brief,
        half_open([channel], path, 1, "other") as others,
    ):
        with pytest.raises(PolicyError) as ended:
            asyncio.run(step_to_the_end(running.address))
        assert ended.value.reason == Reason.TOKEN_INVALID
        assert [outcome(call) for call in (*old, *brief)] == [Reason.TOKEN_INVALID] * 2 + [Reason.TOKEN_EXPIRED]
        assert others[0].is_active()


def test_tls_and_client_certificates(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    authority, stranger = Authority(tmp_path), Authority(tmp_path / "other")
    no_answer = ("UNAVAILABLE", "DEADLINE_EXCEEDED")
    cert, key = authority.issue("server")
    names = ("client_cert", "client_key")
    mine, forged = (dict(zip(names, a.issue("client"), strict=True)) for a in (authority, stranger))
    ca = authority.certificate
    with serving(tls_cert=cert, tls_key=key) as running:
        assert connect_outcome(running.address) in no_answer  # plaintext
        assert connect_outcome(running.address, root_certificates=stranger.certificate) in no_answer
        assert connect_outcome(running.address, root_certificates=ca) == "OK"
    with serving(tls_cert=cert, tls_key=key, tls_client_ca=ca) as running:
        assert connect_outcome(running.address, root_certificates=ca, **mine) == "OK"
        assert connect_outcome(running.address, root_certificates=ca) in no_answer
        assert connect_outcome(running.address, root_certificates=ca, **forged) in no_answer


def test_a_replaced_certificate_is_used_for_the_next_connection(tmp_path: Path) -> None:
    """Health checks run all the time while `tamiyo secrets` replaces the files one after the other."""
    hosts = ["localhost", "127.0.0.1"]
    write_secrets(tmp_path, hosts)
    cert, key = tmp_path / "serve.crt", tmp_path / "serve.key"
    failures, checked, stop = list[str](), threading.Semaphore(0), threading.Event()

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
        assert connect_outcome(running.address, root_certificates=cert) == "OK"
    assert len(failures) >= 24
    assert set(failures) == {""}


def test_files_that_do_not_match_leave_the_certificate_in_use(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (cert, key), (other, other_key) = authority.issue("server"), authority.issue("other")
    with serving(tls_cert=cert, tls_key=key) as running, capture_logs() as logs:
        changes = ((key, other_key.read_bytes()), (cert, b"no certificate"), (cert, b""), (cert, other.read_bytes()))
        for path, data in changes:
            path.write_bytes(data)
            assert failure_reason(f"grpcs://{running.address}", authority.certificate, 5.0) == ""
    events = [log["event"] for log in logs if log["event"].startswith("certificate")]
    assert events == ["certificate not reloaded: the previous one stays in use"] * 3 + ["certificate reloaded"]
    key.write_bytes(b"no key")
    with pytest.raises(UserError, match="cannot use"), serving(tls_cert=cert, tls_key=key):
        pass


def test_training_sessions_end_with_the_scope(tmp_path: Path) -> None:
    """Their unfinished episodes are dropped, even if their clients stay silent; serving continues."""
    tokens = write_file(tmp_path / "tokens", "teacher 2100-01-31 train\nother train\nreader\n")
    with endpoint(tokens=tokens) as e:
        teacher, silent, other = (RawSession(e.address, token=t) for t in ("teacher", "teacher", "other"))
        served = RawSession(e.address, train=False, token="teacher")
        for session in (teacher, silent, other):
            session.step(0)
            session.step(1, 1.0)
        write_file(tmp_path / "new", "teacher\nother train\nreader\n").replace(tokens)
        wait_for(lambda: len(e.running.service.sessions) == 2)
        for call in (lambda: teacher.step(2, 1.0), lambda: teacher.end(2, 1.0), teacher.reset):
            assert refused(call) == "NOT_FOUND SESSION_UNKNOWN"
        for token in ("reader", "teacher"):
            assert refused(RawSession, e.address, token=token) == "PERMISSION_DENIED NOT_PERMITTED"
        assert served.step(0).step_index == 0
        other.end(2, 1.0)
        (episode,) = e.episodes(1)
        dropped = {a.name: a.dropped_sessions for a in e.shipper.accounts()}
        assert {actor for actor, _ in e.transport.ledger().actors} == {episode.episode_id.split("/")[1]}
    assert all(name.startswith("external-") for name in dropped)
    assert dropped.pop(episode.episode_id.split("/")[1]) == 0
    assert list(dropped.values()) == [2]


def test_the_session_of_another_token_does_not_exist(tmp_path: Path) -> None:
    """Nothing that another token does differs from what it does to a session that never was."""
    tokens = write_file(tmp_path / "tokens", "owner train\nstranger train\n")
    with endpoint(tokens=tokens) as e:
        mine, theirs = RawSession(e.address, token="owner"), RawSession(e.address, token="stranger")
        mine.step(0)
        own_id, theirs.id = theirs.id, mine.id
        calls = (theirs.step, 0), (theirs.step, 1, 123.0), (theirs.end, 1, 123.0), (theirs.reset,)
        assert {refused(*call) for call in calls} == {"NOT_FOUND SESSION_UNKNOWN"}  # not even the stored answer
        theirs.close()
        stream = policy_pb2.StepStreamRequest(step=policy_pb2.StepRequest(session_id=mine.id, step_index=0))
        (answer,) = theirs.stub.StepStream(iter([stream]), metadata=theirs.metadata)
        assert answer.failure.reason == "SESSION_UNKNOWN"
        assert mine.step(1, 0.5).step_index == 1
        mine.end(2, 0.25)
        theirs.id = own_id
        assert theirs.step(0).step_index == 0
        (episode,) = e.episodes(1)
    assert episode.rewards.tolist() == [0.5, 0.25]


def test_an_exported_state_belongs_to_its_token(tmp_path: Path) -> None:
    """Also at another replica with the same key."""
    key = write_file(tmp_path / "key", "0123456789abcdef0123456789abcdef")
    tokens = write_file(tmp_path / "tokens", "owner\nstranger\n")
    with (
        serving(token_file=tokens, state_key_file=key) as first,
        serving(token_file=tokens, state_key_file=key) as second,
    ):
        mine = RawSession(first.address, train=False, token="owner")
        given = {"train": False, "exported_state": mine.step(0).exported_state}
        for running in (first, second):
            assert refused(RawSession, running.address, token="stranger", **given) == "INVALID_ARGUMENT STATE_INVALID"
        opened = RawSession(second.address, token="owner", **given)
        assert opened.step(1).step_index == 1
