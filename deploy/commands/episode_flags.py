"""The flags of `tamiyo episodes`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from actors.errors import UserError
from deploy.config.parser import CommandParser

USAGE = """\
usage: tamiyo episodes export [RUN] --out DIR [OPTIONS]
       tamiyo episodes import FILE ... --run RUN [OPTIONS]

Write episodes of a run to files, without taking them from it; or put files into the queue of a run that learns from
them. `tamiyo episodes export --help` and `tamiyo episodes import --help` list the options.
"""


@dataclass(frozen=True)
class EpisodeFlags:
    """What to do with which episodes; an export if there is a folder `out`, else an import."""

    redis: str
    run: str | None
    out: Path | None = None
    most: int = 0
    dead_letters: bool = False
    files: Sequence[Path] = ()
    wait_s: float = 0.0


def episode_flags(args: list[str]) -> EpisodeFlags:
    """Parse the arguments. Raises `UserError`, and `SystemExit` after printing the help."""
    action, rest = args[0] if args else "", args[1:]
    if action in ("-h", "--help"):
        print(USAGE, end="")
        raise SystemExit(0)
    if action == "export":
        return _export(rest)
    if action == "import":
        return _import(rest)
    wrong = f"{action!r} is no action" if action else "the action is missing"
    raise UserError(f"{wrong}: use `tamiyo episodes export` or `tamiyo episodes import`")


def _export(args: list[str]) -> EpisodeFlags:
    description = "Write the episodes that wait in a run's queue to files; the run keeps them."
    parser = CommandParser("episodes export", description)
    parser.add_argument("name", metavar="RUN", nargs="?", help="name of the run, if the server holds several")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the files, one per episode")
    parser.add_argument("--max", type=int, default=100, metavar="N", help="most episodes, oldest first (default: 100)")
    parser.add_argument("--dead-letters", action="store_true", help="instead, episodes that the learner rejected")
    parser.add_store()
    options = parser.parse_args(args)
    if options.max < 1:
        raise UserError(f"--max is {options.max}: it must be at least 1")
    return EpisodeFlags(options.redis, options.name or options.run, options.out, options.max, options.dead_letters)


def _import(args: list[str]) -> EpisodeFlags:
    description = "Put episode files into the queue of a run that learns from them, each once."
    parser = CommandParser("episodes import", description)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help=".episode files, or folders of them")
    wait_help = "time to wait for a full queue, in all (default: 60)"
    parser.add_argument("--wait", type=float, default=60.0, metavar="SECONDS", help=wait_help)
    parser.add_store()
    options = parser.parse_args(args)
    return EpisodeFlags(options.redis, options.run, files=options.files, wait_s=options.wait)
