"""A session belongs to the token that opened it, and a training session needs that token's scope."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.wire import policy_pb2
from tests.support.serving.servers import serving, write_file
from tests.support.serving.training_sessions import RawSession, endpoint, refused
from tests.support.waiting import wait_for

pytestmark = pytest.mark.integration


def test_training_sessions_end_with_the_scope(tmp_path: Path) -> None:
    """Their unfinished episodes are dropped, also if their clients are silent; what is served goes on."""
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
        assert refused(RawSession, e.address, token="reader") == "PERMISSION_DENIED NOT_PERMITTED"
        assert refused(RawSession, e.address, token="teacher") == "PERMISSION_DENIED NOT_PERMITTED"
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
        unknown = "NOT_FOUND SESSION_UNKNOWN"
        assert refused(theirs.step, 0) == unknown  # not even the stored answer
        assert refused(theirs.step, 1, 123.0) == unknown
        assert refused(theirs.end, 1, 123.0) == unknown
        assert refused(theirs.reset) == unknown
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
