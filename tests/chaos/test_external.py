"""Clients, the endpoint, the store and the network fail: no reward is trained on twice, and the counts are exact."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator

import psutil
import pytest

from deploy.launch.embedded_redis import EmbeddedRedis
from tests.support.chaos.harness import ChaosRun
from tests.support.chaos.network import CUT, HELD, MUTE, OPEN, Network
from tests.support.launching import rows, tamiyo
from tests.support.serving.node import ROOT

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(400)]
CLIENT = """
import itertools, random, sys
import tamiyo
number, address = int(sys.argv[1]), sys.argv[2]
with tamiyo.PolicyClient(address, deadline_s=120.0, attempt_s=0.5) as client:
    for n in itertools.count():
        # The return says which episode of which client it is.
        rewards = [float(100_000 * number + n)] + [0.0] * random.randint(1, 8)
        try:
            with client.episode() as episode:
                for reward in rewards:
                    episode.act([random.gauss(0, 1) for _ in range(4)])
                    episode.reward(reward)
            print(rewards[0], flush=True)
        except tamiyo.PolicyError as error:
            print("lost", error, file=sys.stderr, flush=True)
"""


class ExternalRun(ChaosRun):
    """A run whose environments are processes of this test, behind a network; another one is before the store."""

    network: Network
    store_network: Network
    clients: list[subprocess.Popen[bytes]]

    def confirmed(self) -> list[float]:
        """Returns of the episodes whose end the endpoint has confirmed to their clients."""
        files = sorted(self.folder.parent.glob("client*.out"))
        return [float(line) for file in files for line in file.read_text().split()]

    def returns(self) -> list[float]:
        return [row["return"] for row in rows(self.folder / "episodes.jsonl")]

    def endpoint(self) -> psutil.Process:
        (found,) = [p for p in self.command.relatives() if "deploy.launch.endpoint" in p.cmdline()]
        return found

    def start_client(self, number: int) -> None:
        out, err = ((self.folder.parent / f"client{number}.{end}").open("wb") for end in ("out", "err"))
        cable = f"unix:{self.network.paths[number % len(self.network.paths)]}"
        command = [sys.executable, "-c", CLIENT, str(number), cable]
        self.clients.append(subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=err))

    def once(self) -> None:
        """Check both identities, and that no reward was trained on twice."""
        self.identities()
        assert [r for r, n in Counter(self.returns()).items() if n > 1] == []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExternalRun]:
    root = tmp_path_factory.mktemp("x")
    spaces = root / "spaces.json"
    spaces.write_text('{"observation_size": 4, "actions": [3]}')
    flags = {
        "--env": "external", "--spaces": spaces, "--external.listen": f"unix:{root / 'e'}", "--run.name": "chaos",
        "--external.session_timeout_s": 5, "--run.root": root, "--learner.updates": 1_000_000,
        "--learner.batch_episodes": 4, "--learner.batch_steps": 8, "--learner.checkpoint_every": 4,
    }  # fmt: skip
    between = root / "s"
    between.mkdir()
    with EmbeddedRedis() as server, Network(server.socket_path, between, 1) as store_network:
        command = [str(part) for pair in flags.items() for part in pair]
        command += ["--run.redis", server.url]
        command += ["--run.actors_redis", server.url.replace(str(server.socket_path), str(store_network.paths[0]))]
        with tamiyo(root, "train", *command) as started:
            started.wait_for((root / "e").exists, 60)
            with Network(root / "e", root, 2) as network:
                run = ExternalRun(started, root / "chaos", server)
                run.network, run.store_network, run.clients = network, store_network, []
                try:
                    for number in range(2):
                        run.start_client(number)
                    run.wait_for(lambda: run.update >= 2, 100.0)
                    yield run
                finally:
                    for client in run.clients:
                        client.kill()
                        client.wait()


def test_a_killed_client_is_counted(run: ExternalRun) -> None:
    for number in (2, 3, 4):
        before = len(run.confirmed())
        run.start_client(number)
        run.wait_for(lambda: any(r // 100_000 == number for r in run.confirmed()) and len(run.confirmed()) > before)  # noqa: B023
        run.clients[-1].kill()
        run.clients[-1].wait()

    def is_counted() -> bool:
        with run.queue() as queue:
            return any(row.get("cut_sessions") for row in queue.health().actors.values())

    run.wait_for(is_counted, 30)
    run.once()


def test_replies_that_are_lost_change_nothing(run: ExternalRun) -> None:
    """Requests arrive and their answers do not, so that clients repeat what was done."""
    for state in (MUTE, HELD, CUT) * 2:
        run.network.set(0, state)
        time.sleep(1.5)
        run.network.set(0, OPEN)
        before = sum(r // 100_000 == 0 for r in run.confirmed())
        run.wait_for(lambda: sum(r // 100_000 == 0 for r in run.confirmed()) > before + 2)  # noqa: B023
    run.once()


def test_an_endpoint_that_is_cut_off_from_its_store_ships_once(run: ExternalRun) -> None:
    """The store takes episodes while its replies are lost, then nothing arrives. The endpoint puts them again."""
    endpoint, unconfirmed = run.endpoint(), 0
    for outage in ((CUT,), (HELD, CUT), *[(MUTE, CUT)] * 8):
        if unconfirmed == 2:
            break
        accepted = run.ledger().accepted
        for state in outage:
            run.store_network.set(0, state)
            time.sleep(2.0)
        run.ledger().check()
        at_rest = run.ledger().accepted
        time.sleep(1.0)
        assert run.ledger().accepted == at_rest  # nothing arrives
        unconfirmed += MUTE in outage and at_rest > accepted  # the store took what it did not confirm
        run.store_network.set(0, OPEN)
        before, updates = len(run.confirmed()), run.update
        run.wait_for(lambda: run.ledger().accepted > at_rest + 4)  # noqa: B023
        run.wait_for(lambda: len(run.confirmed()) > before + 4 and run.update > updates)  # noqa: B023
        run.once()
    assert unconfirmed
    assert run.endpoint().pid == endpoint.pid  # it waited, and was not restarted
    ledger = run.ledger()
    assert sum(a.dropped_backpressure + a.lost_with_actor for a in ledger.actors.values()) == 0


def test_a_killed_endpoint_is_restarted(run: ExternalRun) -> None:
    known = {number for _, number in run.ledger().actors}
    run.endpoint().kill()
    run.acting_again(time.monotonic(), known)
    run.wait_for_updates(2)
    run.wait_for(lambda: "the endpoint ended with status -9 and is restarted" in run.command.out)
    run.once()


def test_a_killed_store_is_waited_for(run: ExternalRun) -> None:
    os.kill(run.server.pid, signal.SIGKILL)
    time.sleep(2.0)
    assert run.server.restart_if_dead()
    run.running_again("redis", time.monotonic())
    run.once()


def test_the_ledger_the_lineage_and_the_clients_agree_at_the_end(run: ExternalRun) -> None:
    run.wait_for_updates(2)
    ledger = run.end()
    run.once()
    began, trained = set(run.confirmed()), set(run.returns())
    assert len(began) == len(run.confirmed())
    # Cut episodes of one reward are trained on without a confirmation; no other return can appear.
    assert {r // 100_000 for r in trained} <= {0, 1, 2, 3, 4}
    assert len(trained & began) > 40
    assert ledger.trained + ledger.trained_then_lost <= ledger.accepted
    assert sum(a.dropped_backpressure for a in ledger.actors.values()) == 0
    assert (run.folder / "endpoint.log").exists()
