"""Flags of `tamiyo serve`: what is served, and every field of `ServeOptions`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Literal

import tyro

from actors.errors import UserError
from actors.serving.options import ServeOptions
from deploy.config.flags import one_line

Options = Annotated[ServeOptions, tyro.conf.arg(name="")]


@dataclass(frozen=True)
class ServeFlags:
    """Give one of --checkpoint and --redis."""

    checkpoint: Path | None = None
    """A checkpoint file, or a run folder, whose newest one is served."""
    redis: str | None = None
    """URL of the server that a run publishes its weights to; new ones are taken up as they appear."""
    name: str = "tamiyo"
    """Name of the run there (its run.name)."""
    threads: int = 1
    """Threads of the forward pass."""
    log: Literal["json", "console"] = "json"
    """Form of the log, on standard error."""
    options: Options = field(default_factory=ServeOptions)


def serve_flags(args: list[str]) -> ServeFlags:
    """Raises `UserError` in one line, or SystemExit(0) after printing help."""
    known = {"--help", "-h", *(f"--{f.name}" for f in (*fields(ServeFlags), *fields(ServeOptions)))}
    known |= {f"--no_{f.name}" for f in fields(ServeOptions)}
    for arg in args:
        name = "--" + arg.partition("=")[0][2:].replace("-", "_")
        if arg.startswith("--") and name not in known:
            raise UserError(f"unknown flag {arg.partition('=')[0]}; `tamiyo serve --help` lists all flags")
    with one_line("serve"):
        flags = tyro.cli(
            ServeFlags,
            prog="tamiyo serve",
            description="A policy as a gRPC service (tamiyo.v1.PolicyService).",
            args=args,
            use_underscores=True,
        )
    if (flags.checkpoint is None) == (flags.redis is None):
        raise UserError("give what to serve: --checkpoint PATH, or --redis URL of a run")
    return flags
