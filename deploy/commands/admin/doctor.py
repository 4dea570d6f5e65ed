"""`tamiyo doctor`: check what a run needs on this machine, and show what it would use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from actors.errors import UserError, described
from deploy.config.schema import PRESETS
from deploy.launch.embedded_redis import EmbeddedRedis, find_server
from deploy.launch.prepare import cores

GIB = 2**30
RAY_TIMEOUT_S = 90

# Runs in its own process, which contains Ray's output and ends the processes that Ray starts.
RAY_PROBE = """
import os, ray
from actors.process_environment import process_environment
from deploy.config.schema import PRESETS
from deploy.launch.ray.local_ray import local_ray
address = os.environ.get("RAY_ADDRESS")
if address:
    cluster = ray.init(address=address, log_to_driver=False, logging_level="ERROR")
else:
    cluster = local_ray(PRESETS["quick"])
with cluster:
    task = ray.remote(num_cpus=1, runtime_env={"env_vars": process_environment(False)})(lambda: 7)
    assert ray.get(task.remote(), timeout=60) == 7
    print(f"{int(ray.cluster_resources().get('CPU', 0))} CPUs")
"""


class Lacking(Exception):
    """What a run can do without, or with less of."""


def doctor(console: Console | None = None) -> int:
    """Print a table of checks. Returns 1 if any check failed, else 0."""
    console = console or Console(highlight=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2), show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    failed = False
    with console.status("checking (starting Ray takes a few seconds)"):
        for name, check in CHECKS.items():
            try:
                status, detail = "[green]ok[/]", check()
            except Lacking as lacking:
                status, detail = "[yellow]warn[/]", str(lacking)
            except Exception as error:  # so that the other checks still run
                detail = str(error) if isinstance(error, UserError) else described(error)
                status, failed = "[bold red]fail[/]", True
            table.add_row(name, status, detail)
    console.print(table)
    return int(failed)


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError as error:
        raise UserError("not installed: run `make install`, or pip install tamiyo") from error


def _cuda() -> str:
    import torch

    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory / GIB
        others = f", and {torch.cuda.device_count() - 1} more" if torch.cuda.device_count() > 1 else ""
        return f"{torch.cuda.get_device_name(0)}, {memory:.0f} GiB, CUDA {torch.version.cuda}{others}"
    if torch.version.cuda is None:
        return "no GPU: this is a CPU build of PyTorch, so everything runs on the CPU"
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        raise Lacking("no GPU: CUDA_VISIBLE_DEVICES is empty")
    raise Lacking(f"no GPU: PyTorch is built for CUDA {torch.version.cuda}, but no driver or device was found")


def _server() -> str:
    with EmbeddedRedis():
        pass
    binary = find_server()
    output = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    release = next((word.removeprefix("v=") for word in output.split() if word.startswith("v=")), "")
    return f"{binary.name} {release} starts  {binary}"


def _ray() -> str:
    address = os.environ.get("RAY_ADDRESS")
    probe = subprocess.run(
        [sys.executable, "-c", RAY_PROBE], capture_output=True, text=True, timeout=RAY_TIMEOUT_S, check=False
    )
    what = f"cluster at {address}" if address else "local cluster"
    if probe.returncode:
        raise RuntimeError(f"{what}: {(probe.stderr.strip().splitlines() or ['no error message'])[-1]}")
    return f"{what} ran a task, {probe.stdout.splitlines()[0]}"


def _cores() -> str:
    if cores() < 2:
        raise Lacking(f"{cores()}; 2 are recommended")
    return str(cores())


def _memory() -> str:
    memory = psutil.virtual_memory()
    return _enough(memory.available, memory.total, 3, "a run needs about 2 GiB")


def _shared_memory() -> str:
    if not Path("/dev/shm").is_dir():
        return "not present; Ray uses temporary files"
    size = shutil.disk_usage("/dev/shm")
    return _enough(size.free, size.total, 1, "Ray will use slower temporary files (in a container, set --shm-size=2g)")


def _disk() -> str:
    size = shutil.disk_usage(Path.cwd())
    return _enough(size.free, size.total, 1, "use another folder")


def _enough(free: int, total: int, least_gib: int, otherwise: str) -> str:
    detail = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
    if free < least_gib * GIB:
        raise Lacking(f"{detail}; {otherwise}")
    return detail


def _plan() -> str:
    import torch

    actors, device = PRESETS["quick"].actors, "cuda" if torch.cuda.is_available() else "cpu"
    return (
        f"`tamiyo train --preset quick`: learner on {device}, {actors.count} actors x {actors.envs_per_actor} "
        "environments with one thread each"
    )


CHECKS: dict[str, Callable[[], str]] = {
    "python": lambda: f"{sys.version.split()[0]}  {sys.executable}",
    **{name: partial(_installed, name) for name in ("torch", "ray", "grpcio", "protobuf", "redis")},
    "cuda": _cuda,
    "redis server": _server,
    "ray runs": _ray,
    "cores": _cores,
    "memory": _memory,
    "/dev/shm": _shared_memory,
    "disk": _disk,
    "would use": _plan,
}
"""What is checked, by name. Each returns a detail or raises `Lacking` or what is wrong."""
