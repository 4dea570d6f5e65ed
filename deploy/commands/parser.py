"""`CommandParser`: an argument parser that raises `UserError` instead of exiting."""

from __future__ import annotations

import argparse
from typing import NoReturn

from actors.errors import UserError


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
