"""docker-compose.yml as it stands: its limits, secrets and commands. `tests/compose/run.sh` starts its services."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from actors.workers.placement import gpu_room
from deploy.commands.admin.secrets import SERVICES
from deploy.commands.serve_flags import serve_flags
from deploy.config.flags import parse
from deploy.config.schema import PRESETS, Config
from deploy.launch.process_settings import checked_spaces

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]
FILE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
IMAGE_ENTRYPOINT = ["tamiyo"]  # of deploy/Dockerfile
OURS = {name: service for name, service in FILE["services"].items() if service["image"].startswith("tamiyo:")}


def interpolated(text: str, settings: Mapping[str, str]) -> str:
    """Expand `${NAME:-default}`, `${NAME:+replacement}` and `$$` like Compose."""
    filled = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda m: settings.get(m[1]) or m[2], text)
    filled = re.sub(r"\$\{(\w+):\+([^}]*)\}", lambda m: m[2] if settings.get(m[1]) else "", filled)
    assert "${" not in filled
    return filled.replace("$$", "$")


def command_of(service: str, settings: Mapping[str, str]) -> list[str]:
    """Of one of our services."""
    command = OURS[service]["command"]
    if isinstance(command, str):
        words = shlex.split(interpolated(command, settings))
    else:
        words = [interpolated(word, settings) for word in command]
    return [*OURS[service].get("entrypoint", IMAGE_ENTRYPOINT), *words]


def test_every_service_has_limits_a_health_check_and_no_public_port() -> None:
    for name, service in FILE["services"].items():
        limits = service["deploy"]["resources"]["limits"]
        assert {"cpus", "memory"} <= set(limits), name
        assert service["restart"] == ("no" if name in ("init", "status") else "unless-stopped"), name
        assert service["cap_drop"] == ["ALL"], name
        assert name in OURS or ("test" in service["healthcheck"] and re.search(r":v?\d", service["image"])), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        for mount in service.get("volumes", ()):
            source = mount.partition(":")[0]
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
        _, command, *flags = command_of(name, {})
        learner = parse(command, flags).config
        assert learner.run.service
    fleet = actors({})
    assert (fleet.run.name, fleet.env, fleet.policy) == (learner.run.name, learner.env, learner.policy)
    assert fleet.run.address == "fleet:6379"
    assert serve_flags(command_of("serve", {})[2:]).name == learner.run.name


def actors(settings: dict[str, str]) -> Config:
    script = command_of("fleet", settings)[2]
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
    learner = parse("learner", command_of("learner", settings)[2:]).config
    fleet = actors(settings)
    assert learner.learner == fleet.learner == PRESETS[preset].learner
    assert (fleet.actors.count, fleet.actors.max_count) == ("auto", 8)


def test_machines_have_room_for_the_actors_that_the_documentation_starts() -> None:
    """With `--profile gpu-actors`: as many cores as actors share the GPU."""
    page = (ROOT / "docs/deploy/compose.md").read_text()
    (flags,) = re.findall(r'export TAMIYO_FLAGS="(.*)"', page)
    config = actors({"TAMIYO_FLAGS": flags})
    checked_spaces(config)
    start = command_of("actors-gpu", {})
    cpus, gpus = (int(re.findall(rf"--num-{kind}=(\d+)", " ".join(start))[0]) for kind in ("cpus", "gpus"))
    assert gpu_room([gpus], config.actors.gpus_per_actor) == cpus
    (device,) = OURS["actors-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"], len(device["device_ids"])) == ("nvidia", ["gpu"], gpus)
    assert OURS["actors-gpu"]["image"] == OURS["learner-gpu"]["image"] == "tamiyo:cuda"
