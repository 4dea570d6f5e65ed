"""Steps that precede every launch: check the machine, open the run folder, compile kernels, pretrain."""

from __future__ import annotations

import importlib.util
import itertools
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from actors.errors import UserError
from actors.policy.publish import from_weights
from actors.types.names import NAME_RULE, is_name
from actors.types.spaces import Spaces
from deploy.config.flags import resumed_folder
from deploy.config.schema import Config
from deploy.config.yaml import from_yaml, to_yaml
from deploy.launch import kernels
from deploy.launch.ownership import run_lock
from deploy.launch.process_settings import checked_spaces
from learner.network import pick_device, resumed_network
from learner.run.checkpoint import list_checkpoints, load_checkpoint
from learner.run.lineage import forget_untrained, has_trained, start_from


def open_run(config: Config, resume: Path | None, holding: ExitStack | None = None) -> Path:
    """Create or open the run folder and write the resolved configuration to it.

    A folder with checkpoints can only be resumed: by `resume`, a run folder or one of its checkpoints to roll back to,
    or because of `run.service`. The folder is locked until `holding` is closed. Raises `UserError` for everything that
    is known to fail, before anything is written or started.
    """
    spaces = checked_spaces(config)
    if config.imitation.files and not config.run.init_from:
        from deploy.imitation.demonstration_files import read_demonstrations

        read_demonstrations(config, spaces)
    if config.run.wandb and importlib.util.find_spec("wandb") is None:
        raise UserError("run.wandb needs wandb: pip install 'tamiyo[wandb]', or leave out run.wandb")
    if config.run.init_from and resume is None:
        weights = load_checkpoint(Path(config.run.init_from)).weights
        from_weights(weights, spaces=spaces, config=config.policy)
    try:
        run_dir = resumed_folder(resume) if resume is not None else _new_folder(config)
        if holding is not None:
            holding.enter_context(run_lock(run_dir))
        _check_checkpoints(config, spaces, run_dir, resume)
        (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
        (run_dir / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    except OSError as error:
        where = error.filename or config.run.root
        raise UserError(f"cannot write to {where} ({error.strerror}): give another --run.root") from error
    return run_dir


def with_run_name(config: Config, run_dir: Path) -> Config:
    """Name a run without a name after its folder. The name identifies it on Redis and on a cluster."""
    folder = run_dir.absolute().name
    if not is_name(folder):  # the name is part of every episode id
        raise UserError(f"the run folder is named {folder!r}: rename it to {NAME_RULE}")
    return replace(config, run=replace(config.run, name=config.run.name or folder))


def prepare_here(config: Config, resume: Path | None, holding: ExitStack, console: Console) -> tuple[Config, Path]:
    """Prepare a run on this machine alone: open its folder, compile and pretrain. Returns the named run's settings and
    its folder, which is locked until `holding` is closed."""
    run_dir = open_run(config, resume, holding)
    compile_kernels(config, console)
    return pretrain(with_run_name(config, run_dir), run_dir, console), run_dir


def _check_checkpoints(config: Config, spaces: Spaces, run_dir: Path, resume: Path | None) -> None:
    """Check that the run may start or continue in its folder, and roll back to `resume` if that is a checkpoint."""
    if resume is None and not config.run.service and not has_trained(run_dir):
        forget_untrained(run_dir)
    has_checkpoints, rolls_back = bool(list_checkpoints(run_dir / "checkpoints")), resume not in (None, run_dir)
    if resume is None and has_checkpoints and not config.run.service:
        raise UserError(
            f"{run_dir} already holds a run: continue it with --resume {run_dir}, or give another --run.name"
        )
    if resume is not None or has_checkpoints:
        _check_environment(config, run_dir)
    if has_checkpoints or rolls_back:
        resumed_network(load_checkpoint(resume or run_dir), config.policy, spaces)
    if resume is not None and rolls_back:
        start_from(resume)


def _check_environment(config: Config, run_dir: Path) -> None:
    """Raise `UserError` if a run would continue in another environment. Its spaces may be the same."""
    if not (run_dir / "config.yaml").is_file():
        return

    def named(of: Config) -> str:
        gym_id = of.gym.id.rpartition(":")[2] or "the seed-training environment"
        return "an external environment" if of.external.spaces else gym_id

    before, now = map(named, (from_yaml(run_dir / "config.yaml"), config))
    if before != now:
        raise UserError(
            f"{run_dir} has trained in {before}, not in {now}: resume it without --env, or start a new run with its "
            f"weights, by --init-from {run_dir}"
        )


def _new_folder(config: Config) -> Path:
    """Make the folder of a run that is not resumed; a run without a name gets one that no other has."""
    root = Path(config.run.root)
    if config.run.name:
        (root / config.run.name).mkdir(parents=True, exist_ok=True)
        return root / config.run.name
    now = time.strftime("%Y%m%d-%H%M%S")
    for run_dir in (root / (f"{now}-{n}" if n else now) for n in itertools.count()):
        with suppress(FileExistsError):
            run_dir.mkdir(parents=True)
            return run_dir
    raise AssertionError("unreachable")


def compile_kernels(config: Config, console: Console, actors: bool = True, learner: bool = True) -> None:
    """Compile what actors and learner need before any of them starts; otherwise each would wait for it in the run."""
    learns_here = learner and pick_device(config.learner.device).type == "cpu"
    parts = [kernels.POLICY] if actors or learns_here else []
    if actors and config.on_seed_hosts:
        from actors.env.tasks import find_family

        vectors = {find_family(task).kind == "vector" for task in config.env.tasks}
        parts += [kernels.ENVIRONMENTS] if config.env.backend != "torch" and True in vectors else []
        on_gpu = config.env.device == "cuda" or (config.env.device == "auto" and config.actors.gpus_per_actor > 0)
        parts += [kernels.CNNS] if not on_gpu and False in vectors else []
    missing = kernels.missing(parts)
    if not missing:
        return
    named = f"{', '.join(missing[:-1])} and {missing[-1]}" if len(missing) > 1 else missing[0]
    console.print(f"compiling {named} for this machine (once, about {20 + 20 * len(missing)} s) ...", soft_wrap=True)
    with ThreadPoolExecutor() as threads:  # each waits for a process of its own
        for done in [threads.submit(kernels.compile_part, part) for part in missing]:
            done.result()


def pretrain(config: Config, run_dir: Path, console: Console) -> Config:
    """Pretrain the policy if `config` asks for it. Returns `config` with the pretrained policy as `run.init_from`."""
    if config.run.init_from or not config.imitation.enabled:
        return config
    if list_checkpoints(run_dir / "checkpoints") and not config.learner.keeps_prior:
        return config
    from deploy.imitation.pretraining import pretrained_policy  # imports Numba

    if config.imitation.episodes:
        compile_kernels(config, console)
    path = pretrained_policy(config, checked_spaces(config), run_dir, console, cores())
    return replace(config, run=replace(config.run, init_from=str(path.absolute())))


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_machine(config: Config) -> None:
    """Raise `UserError` if the metrics port is in use or the learner device is missing."""
    require_free_port(config.run.metrics_port)
    pick_device(config.learner.device)


def require_free_port(port: int) -> None:
    """Raise `UserError` if the port of metrics is in use on loopback; 0 is always free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UserError(
                f"run.metrics_port is {port}, but that port is in use: give a free port, or 0 for any"
            ) from error
