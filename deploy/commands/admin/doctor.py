"""`tamiyo doctor`: check what a run needs on this machine, and show what it would use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, NamedTuple

import psutil
from rich.console import Console
from rich.table import Table

from actors.errors import UserError
from deploy.config.schema import PRESETS
from deploy.launch.embedded_redis import EmbeddedRedis, find_server
from deploy.launch.machine import cores

Status = Literal["ok", "warn", "fail"]
GIB = 2**30
RAY_TIMEOUT_S = 90
STYLES: dict[Status, str] = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[bold red]fail[/]"}

# Runs in its own process, which contains Ray's output and ends the processes that Ray starts.
_RAY_PROBE = """
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


class Check(NamedTuple):
    """The result of one check."""

    name: str
    status: Status
    detail: str


def doctor(console: Console | None = None) -> int:
    """Print a table of checks. Returns 1 if any check failed, else 0."""
    console = console or Console(highlight=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2), show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    failed = False
    with console.status("checking (starting Ray takes a few seconds)"):
        for check in checks():
            failed |= check.status == "fail"
            table.add_row(check.name, STYLES[check.status], check.detail)
    console.print(table)
    return int(failed)


def checks() -> Iterator[Check]:
    """Run all checks, one after the other."""
    yield _python()
    for package in ("torch", "ray", "grpcio", "protobuf", "redis"):
        yield _package(package)
    for probe in (_cuda, _server, _ray, _cores, _memory, _shared_memory, _disk, _plan):
        yield _guarded(probe)


def _guarded(probe: Callable[[], Check]) -> Check:
    """Report an exception of a probe as a failed check, so that the other checks still run."""
    try:
        return probe()
    except Exception as error:
        return Check(probe.__name__.strip("_").replace("_", " "), "fail", f"{type(error).__name__}: {error}")


def _python() -> Check:
    return Check("python", "ok", f"{'.'.join(map(str, sys.version_info[:3]))}  {sys.executable}")


def _package(name: str) -> Check:
    try:
        return Check(name, "ok", version(name))
    except PackageNotFoundError:
        return Check(name, "fail", "not installed: run `make install`, or pip install tamiyo")


def _cuda() -> Check:
    import torch

    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory / GIB
        others = f", and {torch.cuda.device_count() - 1} more" if torch.cuda.device_count() > 1 else ""
        return Check(
            "cuda", "ok", f"{torch.cuda.get_device_name(0)}, {memory:.0f} GiB, CUDA {torch.version.cuda}{others}"
        )
    if torch.version.cuda is None:
        return Check("cuda", "ok", "no GPU: this is a CPU build of PyTorch, so everything runs on the CPU")
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return Check("cuda", "warn", "no GPU: CUDA_VISIBLE_DEVICES is empty")
    return Check(
        "cuda", "warn", f"no GPU: PyTorch is built for CUDA {torch.version.cuda}, but no driver or device was found"
    )


def _server() -> Check:
    try:
        binary = find_server()
        with EmbeddedRedis():
            pass
    except UserError as error:
        return Check("redis server", "fail", str(error))
    output = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    release = next((word.removeprefix("v=") for word in output.split() if word.startswith("v=")), "")
    return Check("redis server", "ok", f"{binary.name} {release} starts  {binary}")


def _ray() -> Check:
    address = os.environ.get("RAY_ADDRESS")
    what = f"cluster at {address}" if address else "local cluster"
    try:
        probe = subprocess.run(
            [sys.executable, "-c", _RAY_PROBE], capture_output=True, text=True, timeout=RAY_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Check("ray runs", "fail", f"{what} did not respond within {RAY_TIMEOUT_S} s")
    if probe.returncode:
        reason = (probe.stderr.strip().splitlines() or ["no error message"])[-1]
        return Check("ray runs", "fail", f"{what}: {reason}")
    return Check("ray runs", "ok", f"{what} ran a task" + (f", {probe.stdout.split(chr(10))[0]}" if address else ""))


def _cores() -> Check:
    return Check(
        "cores", "ok" if cores() >= 2 else "warn", f"{cores()}" + ("" if cores() >= 2 else "; 2 are recommended")
    )


def _memory() -> Check:
    memory = psutil.virtual_memory()
    detail = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
    enough = memory.available >= 3 * GIB
    return Check("memory", "ok" if enough else "warn", detail + ("" if enough else "; a run needs about 2 GiB"))


def _shared_memory() -> Check:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Check("/dev/shm", "ok", "not present; Ray uses temporary files")
    size = shutil.disk_usage(folder)
    detail = f"{size.free / GIB:.1f} of {size.total / GIB:.1f} GiB free"
    if size.free < GIB:
        return Check(
            "/dev/shm", "warn", f"{detail}; Ray will use slower temporary files (in a container, set --shm-size=2g)"
        )
    return Check("/dev/shm", "ok", detail)


def _disk() -> Check:
    free = shutil.disk_usage(Path.cwd()).free
    return Check("disk", "ok" if free >= GIB else "warn", f"{free / GIB:.0f} GiB free in the current folder")


def _plan() -> Check:
    import torch

    config = PRESETS["quick"]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Check(
        "would use",
        "ok",
        f"`tamiyo train --preset quick`: learner on {device}, {config.actors.count} actors x "
        f"{config.actors.envs_per_actor} environments with one thread each",
    )
