"""`tamiyo status` and `tamiyo dead-letters`: what they say is what the store holds."""

from __future__ import annotations

import json
import re

import pytest

from actors.codec import encode_episode
from actors.config import QueueConfig
from actors.metrics.bottleneck import bottleneck, wait_shares
from actors.transport.base import EpisodeHeader
from actors.transport.ledger import ActorLedger
from actors.transport.redis import Transport, connect
from deploy.cli import main
from deploy.launch.embedded_redis import EmbeddedRedis
from tests.support.builders import make_episode, make_weights
from tests.support.queueing import put, take_ids

pytestmark = pytest.mark.integration


@pytest.fixture
def run(embedded_redis: EmbeddedRedis, namespace: str) -> Transport:
    """Of ten episodes four trained, one dead, two in hand, three waiting; an actor holds one back."""
    transport = connect(embedded_redis.url, None, namespace)
    transport.open_generation(-1, "learner")
    transport.publish(make_weights(0))
    put(transport, *range(10))
    health = {"elapsed_s": 10.0, "waited_s": 6.0, "put_s": 0.5, "fetch_s": 0.1, "version": 0.0}
    transport.report("a", 0, ActorLedger(11, 10, unsent=1), health)
    ids = take_ids(transport, 7)
    transport.ack(ids[:4])
    transport.dead_letter(ids[4], "a reason")
    transport.report_learner({"update": 4, "cycle_s": 2.0, "wait_s": 0.2, "starved_s": 0.1, "policy_lag_in_queue": 1.5})
    return transport


def ask(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    capsys.readouterr()
    status = main(list(args))
    return status, capsys.readouterr().out


def test_status_shows_both_identities_and_who_is_waited_for(
    run: Transport, embedded_redis: EmbeddedRedis, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out = ask(capsys, "status", "--redis", embedded_redis.url, "--run", namespace, "--json")
    seen = json.loads(out)
    assert (status, seen["exact"], seen["bottleneck"]) == (0, True, "learner-bound")
    wanted = {"accepted": 10, "trained": 4, "dead_lettered": 1, "pending": 2, "queued": 3}
    assert {k: seen["ledger"][k] for k in wanted} == wanted
    assert seen["waits"]["learner-bound"] == pytest.approx(0.6)
    assert 0 < seen["oldest_s"] < 60
    assert (seen["generation"], seen["head_version"], seen["learner"]["update"]) == (1, 0, 4)
    status, out = ask(capsys, "status", "--redis", embedded_redis.url, "--run", namespace)
    plain = " ".join(re.sub(r"[│╭╮╰╯─]", " ", out).split())
    for part in ("accepted 10 = trained 4", "queued 3 + pending 2 exact", "learner-bound 60%", "a/0", "0.0 in flight"):
        assert part in plain
    password = embedded_redis.url.partition("@")[0].rpartition(":")[2]
    assert password not in out


def test_status_says_so_where_the_accounts_do_not_add_up(
    run: Transport, embedded_redis: EmbeddedRedis, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run.server.client.hincrby(f"{{{namespace}}}:ledger", "trained", -1)
    status, out = ask(capsys, "status", "--redis", embedded_redis.url, "--run", namespace)
    assert status == 1
    assert "WRONG" in out


def test_a_run_that_is_not_there_is_told(
    run: Transport, embedded_redis: EmbeddedRedis, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--redis", embedded_redis.url, "--run", "nobody"]) == 2
    assert namespace in capsys.readouterr().err
    with EmbeddedRedis() as other:
        assert main(["status", "--redis", other.url]) == 2
        assert "there is no run on this server" in capsys.readouterr().err
        connect(other.url, None, "only").open_generation(-1, "learner")
        assert main(["status", "--redis", other.url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["run"] == "only"


def test_dead_letters_are_listed_and_queued_again(
    run: Transport, embedded_redis: EmbeddedRedis, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    payload = encode_episode(episode := make_episode(1, actor="b"))
    run.take(9, 0)
    run.put(EpisodeHeader.from_episode(episode), payload)
    run.dead_letter(take_ids(run)[0], "a bug since mended")
    where = ("--redis", embedded_redis.url, "--run", namespace)
    _, out = ask(capsys, "dead-letters", *where)
    assert "run/a/0/4" in out
    assert "a bug since mended" in out
    _, good = (letter.dead_id for letter in run.dead_letters())
    assert ask(capsys, "dead-letters", "requeue", good, *where)[0] == 0
    assert [d.payload for d in run.take(9, 0)] == [payload]
    assert main(["dead-letters", "requeue", good, *where]) == 2
    assert ask(capsys, "dead-letters", "requeue", "all", *where)[0] == 0
    run.ledger().check()
    assert ask(capsys, "dead-letters", *where) == (0, "no dead letters\n")


def test_requeueing_respects_the_limits_of_the_run(
    embedded_redis: EmbeddedRedis, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = connect(embedded_redis.url, QueueConfig(max_episodes=2), namespace)
    run.open_generation(-1, "learner")
    put(run, 0)
    run.dead_letter(take_ids(run)[0], "a reason")
    put(run, 1, 2)
    where = ("--redis", embedded_redis.url, "--run", namespace)
    status, out = ask(capsys, "dead-letters", "requeue", "all", *where)
    assert (status, out.partition(": ")[2]) == (1, "the queue is full, try again later\n")
    assert run.ledger().queued == 2


@pytest.mark.parametrize(
    ("learner", "actor", "expected"),
    [
        ({"cycle_s": 1.0, "starved_s": 0.8, "wait_s": 0.8}, {"elapsed_s": 10.0, "put_s": 0.2}, "actor-bound"),
        ({"cycle_s": 1.0, "starved_s": 0.0, "wait_s": 0.5}, {"elapsed_s": 10.0, "put_s": 3.0}, "queue-bound"),
        ({"cycle_s": 1.0, "publish_s": 0.4}, {"elapsed_s": 10.0, "fetch_s": 3.0}, "broadcast-bound"),
        ({"cycle_s": 1.0, "starved_s": 0.5, "wait_s": 0.5}, {"elapsed_s": 10.0, "idle_s": 7.4}, "supervisor-bound"),
        ({"cycle_s": 1.0, "wait_s": 0.01}, {"elapsed_s": 10.0, "waited_s": 7.0}, "learner-bound"),
        ({"cycle_s": 1.0, "wait_s": 0.05}, {"elapsed_s": 10.0, "waited_s": 0.2}, "balanced"),
        ({}, {}, "balanced"),
    ],
)
def test_who_is_waited_for(learner: dict[str, float], actor: dict[str, float], expected: str) -> None:
    assert bottleneck(wait_shares(learner, [actor, actor])) == expected


def test_status_shows_the_accounts_of_training_sessions(
    embedded_redis: EmbeddedRedis, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    transport = connect(embedded_redis.url, None, namespace)
    transport.open_generation(-1, "learner")
    figures = {"steps": 1234.0, "cut_sessions": 5.0, "dropped_sessions": 6.0, "refused": 7.0}
    transport.report("external-0123abcd", 0, ActorLedger(2, unsent=2), {"elapsed_s": 1.0, **figures})
    transport.report("a", 0, ActorLedger(), {"elapsed_s": 1.0})
    _, out = ask(capsys, "status", "--redis", embedded_redis.url, "--run", namespace)
    plain = " ".join(re.sub(r"[│╭╮╰╯─]", " ", out).split())
    assert "training sessions steps cut dropped refused external-0123abcd/0 1,234 5 6 7" in plain
    assert "a/0 1,234" not in plain
