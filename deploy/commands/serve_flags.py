"""Flags of `tamiyo serve`: the source of the weights, and the fields of `ServeOptions`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Literal

import tyro

from actors.errors import UserError
from actors.serving.options import ServeOptions
from deploy.config.docstrings import set_help
from deploy.config.flags import one_line

Options = Annotated[ServeOptions, tyro.conf.arg(name="")]


@dataclass(frozen=True)
class ServeFlags:
    """Flags of `tamiyo serve`. One of --checkpoint, --rule and --redis is required."""

    checkpoint: Path | None = None
    """Checkpoint file, or run folder, of which the newest checkpoint is served."""
    rule: str | None = None
    """A rule by name, such as fixed-column:double@3, instead of a checkpoint."""
    redis: str | None = None
    """URL of the Redis server to which a run publishes its weights. New weights are served as they appear."""
    name: str = "tamiyo"
    """Name of that run (its run.name)."""
    threads: int = 1
    """Number of threads of the forward pass."""
    log: Literal["json", "console"] = "json"
    """Format of the log on standard error."""
    options: Options = field(default_factory=ServeOptions)


def serve_flags(args: list[str]) -> ServeFlags:
    """Parse the flags. Raises `UserError` with a message of one line, or SystemExit(0) after printing help."""
    known = {"--help", "-h", *(f"--{f.name}" for f in (*fields(ServeFlags), *fields(ServeOptions)))}
    known |= {f"--no_{f.name}" for f in fields(ServeOptions)}
    for arg in args:
        name = "--" + arg.partition("=")[0][2:].replace("-", "_")
        if arg.startswith("--") and name not in known:
            raise UserError(f"unknown flag {arg.partition('=')[0]}; `tamiyo serve --help` lists all flags")
    for cls in (ServeFlags, ServeOptions):
        set_help(cls)
    with one_line("serve"):
        flags = tyro.cli(
            ServeFlags,
            prog="tamiyo serve",
            description="Serve a policy over gRPC (tamiyo.v1.PolicyService).",
            args=args,
            use_underscores=True,
        )
    if sum(given is not None for given in (flags.checkpoint, flags.rule, flags.redis)) != 1:
        raise UserError("what is to be served? give one of --checkpoint PATH, --rule NAME and --redis URL")
    return flags
