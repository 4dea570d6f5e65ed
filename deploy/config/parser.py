"""`CommandParser`: an argument parser that raises `UserError` instead of exiting, with flags for dataclasses."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar, get_type_hints

from actors.errors import UserError
from deploy.config.convert import accepts_several, convert, field_docs, parse_words

Options = TypeVar("Options")


class CommandParser(argparse.ArgumentParser):
    """The argument parser of `tamiyo COMMAND`."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(prog=f"tamiyo {command}", description=description)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see `{self.prog} --help`")

    def add_store(self) -> None:
        """Add the options that select a run on a Redis server."""
        redis_help = "Redis server of the run; TAMIYO_REDIS_PASSWORD sets the password"
        self.add_argument("--redis", default="", metavar="URL", help=redis_help)
        self.add_argument("--run", metavar="NAME", help="name of the run, if the server holds several")

    def add_latest(self) -> None:
        """Add the option that selects the newest policy of a run."""
        latest_help = "of a run folder, the newest checkpoint, not the policy that was best in the run's evaluations"
        self.add_argument("--latest", action="store_true", help=latest_help)


def require_server(command: str, url: str) -> None:
    """Raise `UserError` without the address of a Redis server."""
    if not url:
        raise UserError(
            f"tamiyo {command} needs a Redis server: give --redis redis://HOST:6379/0 "
            "(only `tamiyo train` starts its own)"
        )


class FieldParser(CommandParser):
    """A parser with a flag for each field of some dataclasses. Dashes in names stand for underscores. A switch, `--x`,
    takes true or false; alone it stands for true, and `--no_x` for false."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(command, description)
        self.allow_abbrev, self.usage = False, f"{self.prog} [FLAG VALUE ...]"
        self._hints: dict[str, Any] = {}

    def add_fields(self, cls: type, section: str = "", short: Mapping[str, str] | None = None) -> None:
        """Add `--section.field` for each field of `cls`, and its flag in `short`, if it has one."""
        hints, docs, prefix = get_type_hints(cls), field_docs(cls), f"{section}." if section else ""
        group = self.add_argument_group(section or "flags")
        for field in dataclasses.fields(cls):
            name, hint = prefix + field.name, hints[field.name]
            flags = [flag for flag in ((short or {}).get(name), f"--{name}") if flag]
            text = docs[field.name].replace("%", "%%")
            self._hints[name] = hint
            if hint is bool:
                group.add_argument(*flags, dest=name, nargs="?", const="true", metavar="true|false", help=text)
                no = f"--{prefix}no_{field.name}"
                group.add_argument(no, dest=name, action="store_const", const="false", help=argparse.SUPPRESS)
            else:
                group.add_argument(*flags, dest=name, nargs="*" if accepts_several(hint) else None, help=text)

    def given(self, args: Sequence[str]) -> tuple[argparse.Namespace, dict[str, object]]:
        """Parse the arguments. Returns the namespace, and what was given for fields, by their names. Raises `UserError`
        for a flag that does not exist."""
        parsed, rest = self.parse_known_args([_with_underscores(arg) for arg in args])
        for arg in rest:
            name = arg.partition("=")[0]
            if not arg.startswith("--"):
                raise UserError(f"unknown argument {arg!r}; see `{self.prog} --help`")
            raise UserError(f"unknown flag {name}{self._hint(name)}")
        values = dict[str, object]()
        for name, hint in self._hints.items():
            words = getattr(parsed, name)
            if words == []:
                raise UserError(f"--{name} needs a value")
            if words is not None:
                values[name] = parse_words(words if isinstance(words, list) else [words], hint)
        return parsed, values

    def parse_fields(self, cls: type[Options], args: Sequence[str]) -> Options:
        """Parse the arguments into an object of a dataclass. Raises `UserError`, or SystemExit(0) after the help."""
        self.add_fields(cls)
        return cls(**{name: convert(v, self._hints[name], f"--{name}") for name, v in self.given(args)[1].items()})

    def format_help(self) -> str:
        """Return the help, with dashes in the flags: both are read."""
        return re.sub(r"--[a-z_]+", lambda flag: flag[0].replace("_", "-"), super().format_help())

    def _hint(self, name: str) -> str:
        known = [flag for flag in self._option_string_actions if flag.startswith("--")]
        leaf = name.removeprefix("--").rpartition(".")[2]
        close = [flag for flag in known if flag.removeprefix("--").rpartition(".")[2] == leaf]
        close = close or difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        return f"; did you mean {close[0]}?" if close else f"; `{self.prog} --help` lists all flags"


def _with_underscores(arg: str) -> str:
    name, equals, value = arg.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{value}" if arg.startswith("--") else arg
