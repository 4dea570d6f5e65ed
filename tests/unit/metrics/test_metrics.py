"""Names and labels of metrics, the Prometheus endpoint and its idle clients, the status of a run, and intervals."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families
from scipy import stats

from actors.env.episode.timeline import Timeline
from actors.errors import UserError
from actors.metrics import http
from actors.metrics.http import MAX_CONNECTIONS, MetricsServer
from actors.metrics.prometheus import ProcessMetrics
from actors.metrics.registry import exported, lookup
from actors.metrics.run_status import BALANCED, run_status
from actors.slots.objective import Standing
from actors.slots.stage import Slot, Stage
from actors.transport.base import Unreachable
from actors.transport.health import Health
from actors.transport.ledger import ActorLedger, Ledger
from deploy.launch.supervision import monitor as watch
from learner.run.run_metrics import t_interval
from tests.support.learning.toy_learner import ToyProducer, lines, make_learner
from tests.support.ports import free_port
from tests.support.stores import Store
from tests.support.waiting import wait_for


def test_members_of_a_family_are_distinguished_by_labels() -> None:
    for name, shown, labels in (
        ("kl/slot", "tamiyo_head_kl", {"head": "slot"}),
        ("kl", "tamiyo_kl", {}),
        ("memory/write_gate", "tamiyo_memory_write_gate", {}),
        ("choice/blueprint/conv/wide", "tamiyo_choice_share", {"head": "blueprint", "choice": "conv/wide"}),
    ):
        assert (exported(name).name, exported(name).labels) == (shown, labels)
    for unknown in ("nothing", "kl/", "nothing/slot", "memory/nothing", "choice/slot", "choice/slot/"):
        with pytest.raises(KeyError, match="not declared"):
            lookup(unknown)


def scraped(port: int) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_a_process_exports_the_last_values_of_its_roles() -> None:
    metrics, port = ProcessMetrics("a-run"), free_port()
    with ExitStack() as serving:
        serving.callback(metrics.serve("127.0.0.1", port))
        learner, actor = metrics.reporter("learner"), metrics.reporter("actor-0")
        learner({"return_mean": 1.0, "env_steps": 10, "entropy/op": 0.5, "entropy/slot": 0.25})
        learner({"return_mean": 2.0, "env_steps": 30})
        actor({"actor_episodes": 7})
        page = scraped(port)
        with pytest.raises(KeyError):
            learner({"nothing": 1.0})
        with pytest.raises(UserError, match=f"cannot serve metrics on 127.0.0.1:{port}"):
            ProcessMetrics("other").serve("127.0.0.1", port)
    of_learner = (("role", "learner"), ("run", "a-run"))
    assert page["tamiyo_return_mean"] == {of_learner: 2.0}
    assert page["tamiyo_env_steps_total"] == {of_learner: 30.0}
    assert page["tamiyo_head_entropy"] == {(("head", "op"), *of_learner): 0.5, (("head", "slot"), *of_learner): 0.25}
    assert page["tamiyo_actor_episodes_total"] == {(("role", "actor-0"), ("run", "a-run")): 7.0}
    with pytest.raises(OSError, match="refused"):
        scraped(port)


LEDGER = Ledger(
    accepted=10, trained=4, dropped_stale=1, dead_lettered=1, queued=3, pending=1, stream_entries=4,
    actors={("a", 1): ActorLedger(produced=7, accepted=6, unsent=1), ("b", 1): ActorLedger(produced=4, accepted=4)},
)  # fmt: skip


def test_the_run_status_uses_declared_names_and_its_ledger_adds_up() -> None:
    LEDGER.check()
    learner = {"cycle_s": 2.0, "wait_s": 1.0, "starved_s": 1.0}
    status = run_status(LEDGER, Health(now_s=0.0, oldest_s=2.5, learner=learner))
    for name in status:
        lookup(name)
    terms = {name: value for name, value in status.items() if name.startswith("ledger/")}
    assert terms.pop("ledger/accepted") == sum(terms.values()) == 10
    assert [status[f"actor_ledger/{term}"] for term in ("produced", "accepted", "unsent")] == [11, 10, 1]
    assert (status["ledger_gap"], status["oldest_s"]) == (0, 2.5)
    assert status["wait_share/actor-bound"] == 0.5
    verdicts = {name for name, value in status.items() if name.startswith("bottleneck/") and value == 1}
    assert verdicts == {"bottleneck/actor-bound"}
    assert run_status(Ledger(), Health(now_s=0.0))[f"bottleneck/{BALANCED}"] == 1
    lost = Ledger(accepted=10, trained=8, queued=1)
    invented = Ledger(accepted=1, trained=1, actors={("a", 1): ActorLedger(produced=1, accepted=3)})
    assert [run_status(broken, Health(now_s=0.0))["ledger_gap"] for broken in (lost, invented)] == [1, 2]


def test_the_t_interval_matches_scipy() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 12)
    reference = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert t_interval(values.tolist()) == pytest.approx((reference.low, reference.high))
    assert t_interval([1.0]) is None
    assert t_interval([1.0, 1.0]) == (1.0, 1.0)


def test_stage_shares_count_every_epoch_of_every_slot() -> None:
    timeline = Timeline("t", 0, 4, ["STREAM", "COLUMN"], [50.0], 6, 1.0, 0.0)
    young, old = Slot(), Slot(Stage.FOSSILIZED)
    for slots in ([young, young], [young, old], [old, old]):
        timeline.record("WAIT", -1, slots, (), Standing(50.0), 0.0)
    shares = timeline.stage_shares()
    assert shares["stage/FOSSILIZED"] == shares["stage/DORMANT"] == 0.5
    assert len(shares) == len(Stage)
    assert sum(shares.values()) == 1.0


def test_metric_rows_contain_the_interval_and_the_run_status(store: Store, tmp_path: Path) -> None:
    make_learner(tmp_path, store).run(ToyProducer(store))
    for before, row in enumerate(lines(tmp_path / "metrics.jsonl")):
        assert row["return_low"] <= row["return_mean"] <= row["return_high"]
        assert row["ledger/accepted"] >= row["ledger/trained"] >= min(1, before)
        assert row["ledger_gap"] == 0
        assert sum(value for name, value in row.items() if name.startswith("bottleneck/")) == 1


def test_the_run_monitor_continues_while_the_store_is_unreachable(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "EVERY_S", 0.01)
    reported: list[Mapping[str, float]] = []
    connect = Mock(side_effect=[Unreachable("away"), Unreachable("away"), store()])
    watching = watch.RunMonitor(connect, reported.append, lambda: {"actors_alive": 2.0})
    wait_for(lambda: any("ledger_gap" in row for row in reported))
    watching.close()
    seen = [("ledger_gap" in row, row.get("actors_alive")) for row in reported]
    assert seen[:4] == [(False, 2.0), (False, 2.0), (False, 2.0), (True, None)]
    time.sleep(0.05)
    assert (connect.call_count, len(reported)) == (3, len(seen))


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    registry = CollectorRegistry()
    Gauge("some_gauge", "help", registry=registry).set(7)
    server = MetricsServer("127.0.0.1", 0, registry)
    yield server
    server.close()


def stuck(server: MetricsServer, count: int) -> list[socket.socket]:
    connections = [socket.create_connection(("127.0.0.1", server.server_port), timeout=5) for _ in range(count)]
    for connection in connections[1::2]:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n")
    return connections


def trickle(connection: socket.socket) -> None:
    for _ in range(100):  # five seconds
        connection.sendall(b"x")
        time.sleep(0.05)


def test_the_oldest_of_many_connections_give_way(server: MetricsServer) -> None:
    connections = stuck(server, 3 * MAX_CONNECTIONS)
    assert scraped(server.server_port)["some_gauge"] == {(): 7.0}
    assert [c.recv(1) for c in connections[:MAX_CONNECTIONS]] == [b""] * MAX_CONNECTIONS


def test_a_connection_ends_in_time_also_if_it_trickles(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_S", 0.3)
    connections = stuck(server, 4)
    with pytest.raises(OSError, match=r"reset|Broken pipe"):
        trickle(connections[1])
    assert [c.recv(1) for c in (connections[0], connections[2], connections[3])] == [b""] * 3
    assert scraped(server.server_port)["some_gauge"] == {(): 7.0}
