"""Flags of `tamiyo serve`: the source of the weights, and the fields of `ServeOptions`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from actors.errors import UserError
from actors.serving.options import ServeOptions
from deploy.config.parser import FieldParser


@dataclass(frozen=True)
class ServeFlags(ServeOptions):
    """What is served, and how."""

    checkpoint: Path | None = None
    """Checkpoint file, or run folder, of which the policy that was best in its evaluations is served, if it has any."""
    latest: bool = False
    """Serve the newest checkpoint of the run folder instead."""
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


def serve_flags(args: list[str]) -> ServeFlags:
    """Parse the flags. Raises `UserError` with a message of one line, or SystemExit(0) after printing help."""
    flags = FieldParser("serve", "Serve a policy over gRPC (tamiyo.v1.PolicyService).").parse_fields(ServeFlags, args)
    if sum(source is not None for source in (flags.checkpoint, flags.rule, flags.redis)) != 1:
        raise UserError("what is to be served? give one of --checkpoint PATH, --rule NAME and --redis URL")
    return flags
