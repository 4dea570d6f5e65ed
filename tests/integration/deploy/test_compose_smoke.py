"""docker-compose.yml without containers: the commands of its services as plain processes on this machine.

Places of containers are rewritten to this machine's; the rest of each command is as it stands in the file. The real
thing is `tests/compose/run.sh`.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from actors.config import QueueConfig
from actors.transport.redis import connect
from actors.workers.placement import gpu_room
from deploy.commands.admin.health import failure_reason
from deploy.commands.admin.secrets import SERVICES
from deploy.commands.serve_flags import serve_flags
from deploy.config.flags import parse
from deploy.config.schema import PRESETS, Config
from deploy.launch.embedded_redis import find_server
from deploy.launch.process_settings import checked_spaces
from learner.run.checkpoint import load_checkpoint
from tests.compose.ask import STEPS, ask
from tests.support.launching import SMALL, Command, rows
from tests.support.ports import free_ports

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]
FILE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
IMAGE_ENTRYPOINT = ["tamiyo"]  # of deploy/Dockerfile
OURS = {name: service for name, service in FILE["services"].items() if service["image"].startswith("tamiyo:")}
SETTINGS = {
    "TAMIYO_FLAGS": " ".join(
        f"{flag} {value}" for flag, value in SMALL.items() if flag not in ("--actors.count", "--learner.updates")
    ),
    "TAMIYO_ACTORS_MOST": "2",
}


def interpolated(text: str, settings: Mapping[str, str]) -> str:
    """Expand `${NAME:-default}`, `${NAME:+replacement}` and `$$` like Compose."""
    filled = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda m: settings.get(m[1]) or m[2], text)
    filled = re.sub(r"\$\{(\w+):\+([^}]*)\}", lambda m: m[2] if settings.get(m[1]) else "", filled)
    assert "${" not in filled, filled
    return filled.replace("$$", "$")


def command_of(service: dict[str, Any], settings: Mapping[str, str]) -> list[str]:
    command = service.get("command", [])
    if isinstance(command, str):
        words = shlex.split(interpolated(command, settings))
    else:
        words = [interpolated(word, settings) for word in command]
    own = service["image"].startswith("tamiyo:")
    return [*service.get("entrypoint", IMAGE_ENTRYPOINT if own else []), *words]


def test_every_service_has_limits_a_health_check_and_no_public_port() -> None:
    for name, service in FILE["services"].items():
        limits = service["deploy"]["resources"]["limits"]
        assert {"cpus", "memory"} <= set(limits), name
        assert service["restart"] == ("no" if name in ("init", "status") else "unless-stopped"), name
        assert service["cap_drop"] == ["ALL"], name
        assert name in OURS or "test" in service["healthcheck"], name
        assert name in OURS or re.search(r":v?\d", service["image"]), f"{name}: a version is named"
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), name
        for mount in service.get("volumes", ()):
            source, _, _ = mount.partition(":")
            assert source in FILE["volumes"] or (ROOT / source).exists(), mount
    assert [n for n, s in FILE["services"].items() if s.get("ports")] == ["fleet", "serve", "grafana"]


def test_every_service_mounts_only_its_own_secrets() -> None:
    """And finds there whatever its command, its settings and the store's file name."""
    store = (ROOT / "deploy/redis/valkey.conf").read_text()
    mounted = {}
    for name, service in FILE["services"].items():
        named = set(re.findall(r"/run/tamiyo/([\w.]+)", yaml.safe_dump(service) + (store if name == "redis" else "")))
        mounts = [m for m in service.get("volumes", ()) if m.startswith("secrets")]
        if name == "init":
            assert mounts == ["secrets:/run/tamiyo", *(f"secrets-{s}:/run/services/{s}" for s in SERVICES)]
            continue
        folder = name.removesuffix("-gpu")
        assert named == set(SERVICES.get(folder, ())), name
        assert mounts == ([f"secrets-{folder}:/run/tamiyo:ro"] if named else []), name
        mounted[folder] = named
    assert SERVICES.keys() <= mounted.keys()
    image = (ROOT / "deploy/Dockerfile").read_text()
    assert f"for service in {' '.join(SERVICES)}; do" in image  # folders of the image's user, as volumes begin


def test_the_commands_parse_and_no_secret_is_in_the_file() -> None:
    for name, service in FILE["services"].items():
        for variable, value in service.get("environment", {}).items():
            if re.search("PASSWORD|TOKEN|KEY", variable):
                assert str(value).startswith("/run/tamiyo/"), f"{name}: {variable}"
    for name in ("learner", "learner-gpu"):
        _, command, *flags = command_of(OURS[name], {})
        learner = parse(command, flags).config
        assert learner.run.service
    fleet = actors({})
    assert (fleet.run.name, fleet.env, fleet.policy) == (learner.run.name, learner.env, learner.policy)
    assert fleet.run.address == "fleet:6379"
    assert serve_flags(command_of(OURS["serve"], {})[2:]).name == learner.run.name


def actors(settings: dict[str, str]) -> Config:
    script = command_of(OURS["fleet"], settings)[2]
    return parse("actors", script.partition("exec tamiyo actors ")[2].split()).config


@pytest.mark.parametrize(
    ("settings", "preset"),
    [
        ({}, "tamiyo"),
        ({"TAMIYO_FLAGS": "--env CartPole-v1"}, "general"),
        ({"TAMIYO_PRESET": "quick", "TAMIYO_FLAGS": "--gym.max_segment_steps 1"}, "quick"),
    ],
)
def test_flags_in_the_environment_choose_the_preset_of_learner_and_actors(
    settings: dict[str, str], preset: str
) -> None:
    learner = parse("learner", command_of(OURS["learner"], settings)[2:]).config
    fleet = actors(settings)
    assert learner.learner == fleet.learner == PRESETS[preset].learner
    assert (fleet.actors.count, fleet.actors.max_count) == ("auto", 8)


class Stack:
    """The services, started one by one in places of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = iter(free_ports(16))
        store, head = next(self.ports), next(self.ports)
        self.secrets = folder / "secrets"
        self.places = {
            "/run/tamiyo": str(self.secrets),
            "/run/services": str(folder / "services"),
            "/runs": str(folder / "runs"),
            "/data": str(folder / "data"),
            "/etc/tamiyo/valkey.conf": str(folder / "valkey.conf"),
            "redis:6379": f"127.0.0.1:{store}",
            "fleet:6379": f"127.0.0.1:{head}",
            "port 6379": f"port {store}",
            "--port=6379": f"--port={head} --node-ip-address=127.0.0.1",
            "--address=fleet:6379": f"--address=127.0.0.1:{head} --node-ip-address=127.0.0.1",
            "0.0.0.0": "127.0.0.1",
            "bind * -::*": "bind 127.0.0.1",
            "valkey-server": str(find_server()),
        }
        (folder / "data").mkdir()
        store_file = (ROOT / "deploy/redis/valkey.conf").read_text()
        (folder / "valkey.conf").write_text(self.here(store_file.replace("/run/tamiyo", "/run/services/redis")))

    def here(self, text: str, ports: Mapping[str, str] | None = None) -> str:
        for there in sorted(self.places, key=len, reverse=True):
            text = text.replace(there, self.places[there])
        for there, port in (ports or {}).items():
            text = re.sub(rf"\b{there}\b", port, text)
        return text

    def start(self, name: str) -> tuple[Command, list[str]]:
        """The service, and the addresses that its health is told by."""
        service = FILE["services"][name]
        ports = {port: str(next(self.ports)) for port in INNER_PORTS.get(name, ())}
        own = "/run/tamiyo" if name == "init" else f"/run/services/{name}"
        words = [self.here(w.replace("/run/tamiyo", own), ports) for w in command_of(service, SETTINGS)]
        words = [part for word in words for part in (word.split() if word.startswith("--") else [word])]
        environment = {
            key: self.here(str(value).replace("/run/tamiyo", own), ports)
            for key, value in service.get("environment", {}).items()
        }
        path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        running = Command(self.folder, words, environment | path)
        self.places |= {f"{name}:{there}": f"127.0.0.1:{port}" for there, port in ports.items()}
        return running, environment.get("TAMIYO_HEALTH", "").split()


INNER_PORTS = {
    "learner": ["9100"],
    "fleet": ["8265", "52365", "10001", "8090", "9102"],
    "actors": ["52365", "8090"],
    "serve": ["50051", "9101"],
}


def test_machines_have_room_for_the_actors_that_the_documentation_starts() -> None:
    """With `--profile gpu-actors`: as many cores as actors share the GPU."""
    page = (ROOT / "docs/deploy/compose.md").read_text()
    (flags,) = re.findall(r'export TAMIYO_FLAGS="(.*)"', page)
    config = actors({"TAMIYO_FLAGS": flags})
    checked_spaces(config)
    start = command_of(OURS["actors-gpu"], {})
    cpus, gpus = (int(re.findall(rf"--num-{kind}=(\d+)", " ".join(start))[0]) for kind in ("cpus", "gpus"))
    assert gpu_room([gpus], config.actors.gpus_per_actor) == cpus
    (device,) = OURS["actors-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"], len(device["device_ids"])) == ("nvidia", ["gpu"], gpus)
    assert OURS["actors-gpu"]["image"] == OURS["learner-gpu"]["image"] == "tamiyo:cuda"


@contextmanager
def up(places: Stack, *names: str) -> Iterator[dict[str, Command]]:
    """These services, each healthy before the next begins."""
    services: dict[str, Command] = {}
    with ExitStack() as cleaning:
        for name in names:
            services[name], addresses = places.start(name)
            cleaning.callback(services[name].clean)
            if name == "init":
                assert services[name].process.wait(60) == 0, services[name].err
            for address in addresses:
                services[name].wait_for(
                    lambda at=address: not failure_reason(at, places.secrets / "serve.crt", 3.0), 60
                )
        yield services


def metric(address: str, name: str) -> float:
    try:
        page = urllib.request.urlopen(f"http://{address}/metrics", timeout=5).read().decode()
    except OSError:
        return 0.0
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if re.match(rf"{name}[{{ ]", line))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_services_train_answer_and_stop_on_request(tmp_path: Path) -> None:
    """A second learner is refused; at the end every accepted episode is accounted for, and no password was written."""
    places, folder = Stack(tmp_path), tmp_path / "runs" / "main"
    with up(places, "init", "redis", "learner", "fleet", "actors", "serve") as services:
        learner, endpoint, served = (places.places[at] for at in ("learner:9100", "serve:50051", "serve:9101"))
        services["learner"].wait_for(lambda: metric(learner, "tamiyo_update") >= 2, 120)
        assert metric(places.places["fleet:9102"], "tamiyo_actor_episodes_total") >= 2
        services["serve"].wait_for(lambda: metric(served, "tamiyo_serve_policy_version") >= 1, 30)
        assert min(ask(endpoint, places.secrets)) >= 1
        assert metric(served, "tamiyo_serve_steps_total") >= STEPS
        second, _ = places.start("learner")
        try:
            assert second.process.wait(60) == 2
            assert "a learner is training run 'main' already" in second.err
        finally:
            second.clean()
        for name in ("serve", "learner", "fleet"):
            assert services[name].end(10.0) in (0, 130), name
        words = {path.stem: path.read_text().strip() for path in places.secrets.glob("*.password")}
        queue = connect(f"redis://learner:{words['learner']}@{places.places['redis:6379']}/0", QueueConfig(), "main")
        ledger = queue.ledger()
        queue.close()
        said = [service.out + service.err for service in services.values()]
    update = load_checkpoint(folder).progress.update
    assert update == rows(folder / "metrics.jsonl")[-1]["update"] >= 2
    assert ledger.trained == int(SMALL["--learner.batch_episodes"]) * update
    assert ledger.accepted == (
        ledger.trained + ledger.dropped_stale + ledger.fenced + ledger.dead_lettered + ledger.queued + ledger.pending
    )
    assert len(words) == 5
    for text in (*said, (folder / "config.yaml").read_text()):
        assert not any(word in text for word in words.values())
