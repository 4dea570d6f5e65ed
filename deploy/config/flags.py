"""Command-line flags of the configuration dataclasses, parsed by tyro. Every error is reported on one line."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args, get_type_hints

import tyro

from actors.config import ConfigError
from actors.errors import UserError
from deploy.config.docstrings import set_help
from deploy.config.resume import resumed_folder
from deploy.config.schema import PRESETS, Config, default_preset
from deploy.config.yaml import from_yaml

EXTERNAL = "external"
Settings = Annotated[Config, tyro.conf.arg(name="")]


@dataclass(frozen=True)
class Flags:
    """Settings come from the preset, then from the YAML file, then from the flags below."""

    preset: Literal["quick", "tamiyo", "research", "general"] = "tamiyo"
    """Base settings: `quick` takes minutes on two cores, `tamiyo` is the reference, `research` is the study's training,
    and `general` is for Gymnasium and external environments, for which it is the default."""
    config: Path | None = None
    """YAML file with settings that override the preset."""
    redis: str | None = None
    """URL of a Redis or Valkey server; short for --run.redis."""
    address: str | None = None
    """Address of the Ray cluster to run on, such as auto; short for --run.address."""
    gpus_per_actor: float | None = None
    """Fraction of a GPU that each actor reserves; short for --actors.gpus_per_actor."""
    weights_redis: str | None = None
    """URL of a separate Redis server for weights; short for --queue.weights_redis."""
    task: str | None = None
    """A single task to train on, or mypkg:factory for your own; short for --env.tasks."""
    env: str | None = None
    """Gymnasium environment to train on, such as CartPole-v1 or mypkg:MyEnv-v0; short for --gym.id. With `external`,
    programs of your own play at the run's endpoint; give --spaces too."""
    spaces: str | None = None
    """JSON file with the spaces of an external environment; short for --external.spaces."""
    settings: Settings = dataclasses.field(default_factory=Config)


@dataclass(frozen=True)
class ResumableFlags(Flags):
    """Settings come from the preset or the resumed run, then from the YAML file, then from the flags below."""

    resume: Path | None = None
    """Run folder to continue, or one of its checkpoints to roll back to; its settings replace the preset."""
    attach: bool = False
    """Only follow the running run --run.name at --address; never start one."""
    in_process: bool = False
    """`train` with one actor and the learner taking turns in this process, without Ray and Redis: on one core, with the
    same numbers each time, and open to a debugger."""
    init_from: str | None = None
    """Checkpoint with the initial weights of a new run; short for --run.init_from."""


class ParsedFlags(NamedTuple):
    """The result of parsing a command line."""

    config: Config
    resume: Path | None
    attach: bool = False
    in_process: bool = False


def parse(command: str, args: list[str], *, resumable: bool) -> ParsedFlags:
    """Parse the flags of a command. Raises `UserError` for invalid flags, and `SystemExit(0)` after printing help."""
    kind = ResumableFlags if resumable else Flags
    _refuse_unknown(command, args, resumable)
    first = _first_pass(args)
    base = dataclasses.replace(kind(), settings=_base(first, resumable))
    for cls in (Flags, ResumableFlags, *get_type_hints(Config).values()):
        set_help(cls)
    with one_line(command):
        flags = tyro.cli(
            kind,
            prog=f"tamiyo {command}",
            description=_DESCRIPTIONS[command],
            args=list(_with_none(args)),
            default=base,
            use_underscores=True,
        )
    config = flags.settings
    if flags.redis is not None:
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, redis=flags.redis))
    if flags.address is not None:
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, address=flags.address))
    if flags.gpus_per_actor is not None:
        actors = dataclasses.replace(config.actors, gpus_per_actor=flags.gpus_per_actor)
        config = dataclasses.replace(config, actors=actors)
    if flags.weights_redis is not None:
        queue = dataclasses.replace(config.queue, weights_redis=flags.weights_redis)
        config = dataclasses.replace(config, queue=queue)
    if flags.task is not None:
        config = dataclasses.replace(config, env=dataclasses.replace(config.env, tasks=(flags.task,)))
    if isinstance(flags, ResumableFlags) and flags.init_from is not None:
        if first.resume is not None:
            raise UserError("--init-from and --resume are mutually exclusive: a resumed run already has weights")
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, init_from=flags.init_from))
    if flags.env == EXTERNAL:
        if not config.external.spaces:
            raise UserError("--env external needs --spaces FILE.json: the spaces of your environment")
    elif flags.env is not None:
        config = dataclasses.replace(config, gym=dataclasses.replace(config.gym, id=flags.env))
    if not isinstance(flags, ResumableFlags):
        return ParsedFlags(config, None)
    return ParsedFlags(config, first.resume, flags.attach, flags.in_process)


_DESCRIPTIONS = {
    "train": "Run a training on this machine, or with --address on a Ray cluster.",
    "learner": "Run only the learner; it exchanges data with the actors through --redis URL.",
    "actors": "Run only the actors; they exchange data with the learner through --redis URL.",
}


def _first_pass(args: list[str]) -> argparse.Namespace:
    """Parse only the flags that determine the defaults of all others."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--preset", default=None)
    parser.add_argument("--env", "--gym.id", dest="env", default=None)
    parser.add_argument("--spaces", "--external.spaces", dest="spaces", default=None)
    parser.add_argument("--config", type=Path, default=None)
    parser.add_argument("--resume", type=Path, default=None)
    try:
        return parser.parse_known_args(args)[0]
    except argparse.ArgumentError as error:
        raise UserError(f"{error.argument_name} needs a value") from error


def _base(first: argparse.Namespace, resumable: bool) -> Config:
    if first.preset is not None and first.preset not in PRESETS:
        raise UserError(f"unknown preset {first.preset!r}: give one of {', '.join(sorted(PRESETS))}")
    env = first.spaces or first.env
    base = PRESETS[first.preset] if first.preset else None
    if first.resume is not None and resumable:
        if first.preset is not None:
            raise UserError("--preset and --resume are mutually exclusive: a resumed run keeps its settings")
        base = _resumed(first.resume)
    if first.config is not None:
        base = from_yaml(first.config, base, env)
    base = base or PRESETS[default_preset({}, env)]
    if first.spaces is None:
        return base
    # Other settings are checked against it, so it must be known before they are parsed.
    return dataclasses.replace(base, external=dataclasses.replace(base.external, spaces=first.spaces))


def _resumed(resume: Path) -> Config:
    run_dir = resumed_folder(resume)
    if not (run_dir / "config.yaml").is_file():
        raise UserError(f"cannot resume: {run_dir} is not a run folder (it has no config.yaml)")
    return from_yaml(run_dir / "config.yaml")


def _refuse_unknown(command: str, args: list[str], resumable: bool) -> None:
    known = list(known_flags(resumable))
    for arg in args:
        name = "--" + arg.partition("=")[0][2:].replace("-", "_")
        if not arg.startswith("--") or name in known:
            continue
        leaf = name.removeprefix("--").rpartition(".")[2]
        close = [k for k in known if k.rpartition(".")[2].removeprefix("--") == leaf]
        close = close or difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        hint = f"did you mean {close[0]}?" if close else f"`tamiyo {command} --help` lists all flags"
        raise UserError(f"unknown flag {arg.partition('=')[0]}; {hint}")


def known_flags(resumable: bool) -> Iterator[str]:
    """Yield every flag as shown by --help, with underscores."""
    yield from ("--help", "--preset", "--config", "--redis", "--weights_redis", "--task", "--env", "--spaces")
    yield from ("--address", "--gpus_per_actor")
    if resumable:
        yield from ("--resume", "--init_from", "--attach", "--no_attach", "--in_process", "--no_in_process")
    base = Config()
    for section in dataclasses.fields(base):
        for f in dataclasses.fields(getattr(base, section.name)):
            yield f"--{section.name}.{f.name}"
            if isinstance(getattr(getattr(base, section.name), f.name), bool):
                yield f"--{section.name}.no_{f.name}"


def _with_none(args: list[str]) -> Iterator[str]:
    """Translate `null` and `none` to tyro's `None` for optional fields."""
    optional = {
        f"--{section}.{f.name}"
        for section, kind in get_type_hints(Config).items()
        for f in dataclasses.fields(kind)
        if type(None) in get_args(get_type_hints(kind)[f.name])
    }
    flag = ""
    for arg in args:
        name, equals, value = arg.partition("=")
        if arg.startswith("--"):
            flag = "--" + name[2:].replace("-", "_")
        is_null = flag in optional and (value if equals else arg) in ("null", "none")
        yield (f"{name}=None" if equals else "None") if is_null else arg


@contextlib.contextmanager
def one_line(command: str) -> Iterator[None]:
    """Convert tyro's error message, a box on stderr, to a one-line `ConfigError` with its first paragraph."""
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            yield
    except SystemExit as end:
        if not end.code:
            raise
        lines = [line.strip(" │") for line in box.getvalue().splitlines()[1:]]
        reason: list[str] = []
        for line in lines:
            if line.startswith(("─", "╰")):
                break
            reason.append(line)
        text = re.sub(r"^Error parsing (settings\.[a-z]+: )?", "", " ".join(filter(None, reason)))
        # For an optional field tyro reports one reason per type; the last one is enough.
        text = re.sub(r"(?<=: )no type matching .* - <class '\w+'>: ", "", text)
        # A range is one number or two; tyro explains both, with markup.
        text = re.sub(
            r": (?:invalid literal|could not convert|input length).* - tuple\[.*", ": give one number, or two", text
        )
        text = re.sub(r" -+ typing\.Literal\[.*?\]: .*? does not match choices \(([^)]*?),?\)", r"; or give \1", text)
        raise ConfigError(text or f"invalid flags; see `tamiyo {command} --help`") from None
