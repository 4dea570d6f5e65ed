"""`tamiyo status` and `tamiyo dead-letters`: what they say is what the store holds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from actors.codec import encode_episode
from actors.metrics.run_status import bottleneck, wait_shares
from actors.transport.base import EpisodeHeader
from actors.transport.ledger import ActorLedger
from actors.transport.redis import Transport, connect
from deploy.cli import main
from deploy.launch.embedded_redis import EmbeddedRedis
from tests.support.builders import make_episode, make_weights
from tests.support.queueing import put, take_ids
from tests.support.stores import Store

Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def run(store: Store) -> Transport:
    """Of ten episodes four trained, one dead, two in hand, three waiting; an actor holds one back."""
    transport = store()
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


@pytest.fixture
def ask(store: Store, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run a command on the run. Returns its status and what it prints, without the frames of tables."""

    def command(*args: str, url: str = store.url, run: tuple[str, ...] = (store.namespace,)) -> tuple[int, str]:
        status = main([*args, "--redis", url, *(word for name in run for word in ("--run", name))])
        return status, " ".join(re.sub(r"[│╭╮╰╯─]", " ", "".join(capsys.readouterr())).split())

    return command


def test_status_shows_both_identities_and_who_is_waited_for(run: Transport, ask: Ask, store: Store) -> None:
    status, out = ask("status", "--json")
    seen = json.loads(out)
    assert (status, seen["exact"], seen["bottleneck"]) == (0, True, "learner-bound")
    wanted = {"accepted": 10, "trained": 4, "dead_lettered": 1, "pending": 2, "queued": 3}
    assert {k: seen["ledger"][k] for k in wanted} == wanted
    assert seen["waits"]["learner-bound"] == pytest.approx(0.6)
    assert 0 < seen["oldest_s"] < 60
    assert (seen["generation"], seen["head_version"], seen["learner"]["update"]) == (1, 0, 4)
    _, plain = ask("status")
    for part in ("accepted 10 = trained 4", "queued 3 + pending 2 exact", "learner-bound 60%", "a/0", "0.0 in flight"):
        assert part in plain
    assert store.url.partition("@")[0].rpartition(":")[2] not in plain  # the password
    run.server.client.hincrby(store.key("ledger"), "trained", -1)
    status, out = ask("status")
    assert (status, "WRONG" in out) == (1, True)


def test_a_run_that_is_not_there_is_told(run: Transport, ask: Ask, store: Store) -> None:
    status, said = ask("status", run=("nobody",))
    assert (status, store.namespace in said) == (2, True)
    with EmbeddedRedis() as other:
        status, said = ask("status", url=other.url, run=())
        assert (status, "there is no run on this server" in said) == (2, True)
        connect(other.url, None, "only").open_generation(-1, "learner")
        status, out = ask("status", "--json", url=other.url, run=())
        assert (status, json.loads(out)["run"]) == (0, "only")


def test_dead_letters_are_listed_and_queued_again(run: Transport, ask: Ask) -> None:
    payload = encode_episode(episode := make_episode(1, actor="b"))
    run.take(9, 0)
    run.put(EpisodeHeader.from_episode(episode), payload)
    run.dead_letter(take_ids(run)[0], "a bug since mended")
    shown = ask("dead-letters")[1]
    assert all(part in shown for part in ("run/a/0/4", "a bug since mended"))
    _, good = (letter.dead_id for letter in run.dead_letters())
    for which, status in ((good, 0), (good, 2), ("all", 0)):
        assert ask("dead-letters", "requeue", which)[0] == status
    assert [d.payload for d in run.take(9, 0)][:1] == [payload]
    assert ask("dead-letters") == (0, "no dead letters")


def test_requeueing_respects_the_limits_of_the_run(store: Store, ask: Ask) -> None:
    run = store(max_episodes=2)
    run.open_generation(-1, "learner")
    put(run, 0)
    run.dead_letter(take_ids(run)[0], "a reason")
    put(run, 1, 2)
    status, out = ask("dead-letters", "requeue", "all")
    assert (status, out.partition(": ")[2]) == (1, "the queue is full, try again later")
    assert run.ledger().queued == 2


@pytest.mark.parametrize(
    ("learner", "actor", "expected"),
    [  # seconds of each second of a cycle, and of ten
        ({"starved_s": 0.8, "wait_s": 0.8}, {"put_s": 0.2}, "actor-bound"),
        ({"starved_s": 0.0, "wait_s": 0.5}, {"put_s": 3.0}, "queue-bound"),
        ({"publish_s": 0.4}, {"fetch_s": 3.0}, "broadcast-bound"),
        ({"starved_s": 0.5, "wait_s": 0.5}, {"idle_s": 7.4}, "supervisor-bound"),
        ({"wait_s": 0.01}, {"waited_s": 7.0}, "learner-bound"),
        ({"wait_s": 0.05}, {"waited_s": 0.2}, "balanced"),
    ],
)
def test_who_is_waited_for(learner: dict[str, float], actor: dict[str, float], expected: str) -> None:
    assert bottleneck(wait_shares({"cycle_s": 1.0, **learner}, [{"elapsed_s": 10.0, **actor}] * 2)) == expected


def test_status_shows_the_accounts_of_training_sessions(run: Transport, ask: Ask) -> None:
    figures = {"steps": 1234.0, "cut_sessions": 5.0, "dropped_sessions": 6.0, "refused": 7.0}
    run.report("external-0123abcd", 0, ActorLedger(2, unsent=2), {"elapsed_s": 1.0, **figures})
    _, plain = ask("status")
    assert "training sessions steps cut dropped refused external-0123abcd/0 1,234 5 6 7" in plain
    assert "a/0 1,234" not in plain
