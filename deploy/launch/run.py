"""What every launch has in common: the run's folder, Ray, and a stop that signals ask for."""

from __future__ import annotations

import importlib.util
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import ray
from ray._private import ray_constants
from rich.console import Console

from actors.config import ActingConfig
from actors.env.env import check_tasks, seed_spaces
from actors.env.gym.make import gym_spaces
from actors.env.kernels.cache import is_compiled
from actors.errors import UserError
from actors.metrics.prometheus import ProcessMetrics
from actors.metrics.ray import RayMetrics
from actors.policy.publish import from_weights
from actors.types.spaces import Spaces
from deploy.commands.doctor import cores
from deploy.config.schema import Config
from deploy.config.yaml import to_yaml
from learner.checkpoint import list_checkpoints, load_checkpoint
from learner.service import LearnerSettings
from learner.train import pick_device, resumed_network


def namespace(config: Config) -> str:
    """Keeps runs apart on one server: the run's name, the same for its learner and its actors."""
    return config.run.name or "tamiyo"


def acting(config: Config) -> ActingConfig:
    actors = replace(config.actors, max_count=config.most_actors)
    return ActingConfig(config.env, config.gym, config.policy, actors, config.queue)


def checked_spaces(config: Config) -> Spaces:
    """Of the environment that is trained on; raises `UserError` for one that is not there or cannot be trained."""
    if config.gym.id:
        return gym_spaces(config.gym)
    check_tasks(config.env, config.run.seed)
    return seed_spaces(config.env.slots, config.env.profile)


def learner_settings(config: Config, run_dir: Path, redis: str) -> LearnerSettings:
    spaces = checked_spaces(config)
    return LearnerSettings(
        config.learner,
        config.policy,
        config.queue,
        spaces,
        str(run_dir),
        config.run.seed,
        redis,
        namespace(config),
        config.run.wandb,
        config.run.init_from,
    )


def learner_report(run: str) -> Callable[[dict[str, float]], None]:
    """Made inside the learner's Ray process."""
    return RayMetrics("learner", run).report


def open_run(config: Config, resume: Path | None) -> Path:
    """The run's folder, with the configuration as resolved. A folder that has trained is only gone on with: by
    `resume`, or because `run.service` says so.

    What can be known to fail is refused here with a `UserError`, before anything is written or started.
    """
    spaces = checked_spaces(config)
    if config.imitation.episodes:
        from deploy.launch.pretraining import demonstrators

        demonstrators(config)
    if config.run.wandb and importlib.util.find_spec("wandb") is None:
        raise UserError("run.wandb needs a package: pip install 'tamiyo[wandb]', or leave run.wandb out")
    if resume is not None:
        if not resume.is_dir():
            raise UserError(f"no run folder at {resume}: give one that an earlier run left, such as runs/NAME")
        run_dir = resume
        if list_checkpoints(run_dir / "checkpoints"):
            resumed_network(load_checkpoint(run_dir), config.policy, spaces)
    else:
        if config.run.init_from:
            weights = load_checkpoint(Path(config.run.init_from)).weights
            from_weights(weights, spaces=spaces, config=config.policy)
        run_dir = Path(config.run.root) / (config.run.name or time.strftime("%Y%m%d-%H%M%S"))
        if list_checkpoints(run_dir / "checkpoints"):
            if not config.run.service:
                raise UserError(
                    f"{run_dir} holds a run already: go on with it by --resume {run_dir}, or give another --run.name"
                )
            resumed_network(load_checkpoint(run_dir), config.policy, spaces)
    try:
        (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
        (run_dir / "config.yaml").write_text(to_yaml(config))
    except OSError as error:
        raise UserError(f"cannot write to {run_dir} ({error.strerror}): give another --run.root") from error
    return run_dir


def check_machine(config: Config) -> None:
    """Raises `UserError` where this machine lacks what a run on it needs."""
    require_free_port(config.run.metrics_port, "run.metrics_port")
    pick_device(config.learner.device)


def require_free_port(port: int, setting: str) -> None:
    """Raises `UserError` when something listens on this loopback port already; 0 is always free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UserError(
                f"{setting} is {port}, but that port is in use: give a free one, or 0 to let one be chosen"
            ) from error


@contextmanager
def local_ray(config: Config, metrics_port: int = 0) -> Iterator[str]:
    """A Ray of our own on loopback, with a token of its own; gone when the context ends. Yields where its dashboard is,
    for people; empty without one."""
    hint = "and asks for the token in RAY_AUTH_TOKEN"
    if "RAY_AUTH_TOKEN" not in os.environ:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        hint = f"and asks for this token: {os.environ['RAY_AUTH_TOKEN']}"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_task_events_max_num_task_in_gcs", "1000")  # each poll is a task, kept for the dashboard
    # Told that it cannot form clusters, Ray binds all its ports to loopback; a node address alone it would translate.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False  # read from there when Ray was imported
    count = config.actors.count
    with own_signals():
        context = ray.init(
            address="local",
            # A slot each for actors and learner, however few cores there are.
            num_cpus=count + 1 if isinstance(count, int) else max(2, cores()),
            include_dashboard=config.run.dashboard,
            logging_level=logging.ERROR,
            log_to_driver=False,
            _metrics_export_port=metrics_port or None,
            _node_ip_address="127.0.0.1",
        )
    try:
        yield f"Ray's dashboard is at http://{context.dashboard_url} {hint}" if config.run.dashboard else ""
    finally:
        ray.shutdown()


def compile_environments(config: Config, console: Console) -> None:
    """Make machine code once here, and not in every actor at once while a run's time passes."""
    if not config.gym.id and config.env.backend != "torch" and not is_compiled("float32"):
        console.print("compiling the environments for this machine, once: some twenty seconds ...")
        from actors.env.seed_fleet import compile_kernels  # brings Numba, which no other process of ours needs

        compile_kernels()


def pretrain(config: Config, run_dir: Path, console: Console) -> Config:
    """`config`, of which a run begins with a policy that has imitated, where it asks for that."""
    if config.run.init_from or not config.imitation.episodes:
        return config
    if list_checkpoints(run_dir / "checkpoints") and not config.learner.keeps_prior:
        return config
    from deploy.launch.pretraining import pretrained_policy  # brings Numba

    compile_environments(config, console)
    path = pretrained_policy(config, run_dir, console)
    return replace(config, run=replace(config.run, init_from=str(path.absolute())))


@contextmanager
def own_signals() -> Iterator[None]:
    """Signals mean afterwards what they meant before: Ray takes SIGTERM for a crash report of its own."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def own_metrics(config: Config) -> Iterator[ProcessMetrics]:
    """Of a process that runs beside Ray or without it, shown on `run.metrics_port` where one is given."""
    metrics = ProcessMetrics(namespace(config))
    end = metrics.serve(config.run.metrics_host, config.run.metrics_port) if config.run.metrics_port else lambda: None
    try:
        yield metrics
    finally:
        end()


@contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """SIGINT and SIGTERM set the event instead of interrupting; a second one interrupts."""
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
