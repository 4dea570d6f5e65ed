"""Read docker-compose.yml and run the commands of its services as plain processes."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.launching import Command

ROOT = Path(__file__).parents[2]
IMAGE_ENTRYPOINT = ["tamiyo"]  # of deploy/Dockerfile


def project() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


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


class Service(Command):
    def __init__(self, command: list[str], environment: Mapping[str, str], folder: Path) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        super().__init__(folder, command, {**environment, "PATH": path, "OMP_NUM_THREADS": "1"})

    @property
    def said(self) -> str:
        return self.out + self.err
