"""Prometheus scrapes a real run and a real policy server, and every dashboard panel has data."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
import yaml

from actors.serving.client.blocking import PolicyClient
from actors.sessions.session import PolicyError
from actors.slots.spaces import seed_spaces
from deploy.launch.embedded_redis import EmbeddedRedis
from tests.support.launching import Command, rows, running, small, tamiyo
from tests.support.ports import free_ports
from tests.support.serving.servers import step_inputs
from tests.support.waiting import wait_for

PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus here: apt install prometheus"),
]
FOLDER = Path(__file__).parents[3] / "deploy/grafana/dashboards"
ALERTS = FOLDER.parent / "provisioning/alerting"
RUN = "watched"
START_S = 150.0


def ask(port: int, expr: str) -> list[dict[str, Any]]:
    """The answer of the Prometheus server on this port."""
    with urlopen(f"http://127.0.0.1:{port}/api/v1/query?" + urlencode({"query": expr}), timeout=10) as reply:
        found = json.load(reply)
    assert found["status"] == "success", found
    return found["data"]["result"]


def answers(port: int) -> bool:
    with suppress(OSError):
        return bool(ask(port, "1"))
    return False


@contextmanager
def prometheus(folder: Path, port: int, *targets: int) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """A server that scrapes every two seconds, to be asked."""
    static = [{"targets": [f"127.0.0.1:{target}" for target in targets]}]
    scrape = {"job_name": "tamiyo", "scrape_interval": "2s", "static_configs": static}
    (folder / "prometheus.yml").write_text(yaml.safe_dump({"scrape_configs": [scrape]}))
    flags = (f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb")
    with running(folder, [PROMETHEUS, *flags, f"--web.listen-address=127.0.0.1:{port}"], {}) as process:
        process.wait_for(lambda: answers(port), 30)
        yield partial(ask, port)


def queries() -> dict[str, list[str]]:
    """Of each panel, as Grafana would ask for this run, and of each alert rule."""
    found: dict[str, list[str]] = {}
    for path in FOLDER.glob("*.json"):
        rows = json.loads(path.read_text())["panels"]
        for panel in [*rows, *(p for row in rows for p in row.get("panels", ()))]:
            exprs = [t["expr"].replace("$run", RUN) for t in panel.get("targets", ())]
            asked = [expr.replace("$__rate_interval", "15s") for expr in exprs]
            assert not any("$" in expr for expr in asked)
            found.setdefault(f"{path.stem}: {panel['title']}", []).extend(asked)
    for path in ALERTS.glob("*.json"):
        for rule in (rule for group in json.loads(path.read_text())["groups"] for rule in group["rules"]):
            found[f"alert: {rule['title']}"] = [q["model"]["expr"] for q in rule["data"] if "expr" in q["model"]]
    return found


def use(serve: Command) -> None:
    """A few steps, and a request that is refused."""
    spaces = seed_spaces(5, "tamiyo")
    with PolicyClient(serve.out.split()[-1], deadline_s=30) as client:
        session = client.open(spaces)
        for step in range(4):
            session.step(*step_inputs(0, step, spaces))
        with pytest.raises(PolicyError):
            client.open(spaces).step(*step_inputs(0, 0, spaces.with_slots(2)))


def shown_by_ray(run: Command, token: str) -> list[str]:
    """Classes of the living actors on Ray's dashboard, whose address the run has printed, and not the token given."""
    assert token not in run.out
    (address,) = re.findall(r"dashboard is at (http://\S+)", run.out)
    asked = Request(f"{address}/logical/actors", headers={"Authorization": f"Bearer {token}"})
    with urlopen(asked, timeout=20) as page:
        actors = json.load(page)["data"]["actors"].values()
    return sorted(actor["actorClass"] for actor in actors if actor["state"] == "ALIVE")


def test_every_panel_of_every_dashboard_has_data(tmp_path: Path) -> None:
    of_ray, of_server, own = free_ports(3)
    changes = {"learner__updates": 5000, "policy__core": "lstm+memory", "run__metrics_port": of_ray}
    token, command = secrets.token_hex(32), [*small(tmp_path, RUN, **changes), "--run.dashboard"]
    with (
        EmbeddedRedis() as store,
        tamiyo(tmp_path, "train", *command, "--run.redis", store.url, RAY_AUTH_TOKEN=token) as run,
        prometheus(tmp_path, own, of_ray, of_server) as server,
    ):
        run.wait_for(lambda: len(rows(tmp_path / RUN / "metrics.jsonl")) >= 2, START_S)
        flags = ("--redis", store.url, "--name", RUN, "--listen", "127.0.0.1:0", "--metrics_port", str(of_server))
        with tamiyo(tmp_path, "serve", *flags) as serve:
            serve.wait_for(lambda: bool(re.search(r":\d+\s*$", serve.out)), START_S)
            deadline = time.monotonic() + START_S
            while missing := [f"{title}: {q}" for title, own in queries().items() for q in own if not server(q)]:
                assert time.monotonic() < deadline, "\n".join(missing)
                use(serve)
                time.sleep(1.0)
            ledger = f'{{__name__="ray_tamiyo_ledger", run="{RUN}", term%s"accepted"}}'
            wait_for(lambda: server(f"sum({ledger % '='}) == sum({ledger % '!='}) > 0"), START_S)
            assert shown_by_ray(run, token) == ["LearnerService", "RayRolloutWorker"]
            (alive,) = server('{__name__="ray_tamiyo_actors_alive"}')
            assert (float(alive["value"][1]), alive["metric"]["role"]) == (1, "supervisor")
