"""Checks of this machine: cores, devices and free ports."""

from __future__ import annotations

import os
import socket

from actors.errors import UserError
from deploy.config.schema import Config
from learner.network import pick_device


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_machine(config: Config) -> None:
    """Raise `UserError` if the metrics port is in use or the learner device is missing."""
    require_free_port(config.run.metrics_port, "run.metrics_port")
    pick_device(config.learner.device)


def require_free_port(port: int, setting: str) -> None:
    """Raise `UserError` if this loopback port is in use; 0 is always free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UserError(f"{setting} is {port}, but that port is in use: give a free port, or 0 for any") from error
