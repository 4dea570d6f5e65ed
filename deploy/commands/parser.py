"""`CommandParser`: flags of the small commands, with every complaint as a `UserError`."""

from __future__ import annotations

import argparse
from typing import NoReturn

from actors.errors import UserError


class CommandParser(argparse.ArgumentParser):
    """Of `tamiyo COMMAND`."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(prog=f"tamiyo {command}", description=description)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see `{self.prog} --help`")

    def add_store(self) -> None:
        """Flags that say which run on which server."""
        known = "the run's server; TAMIYO_REDIS_PASSWORD is heeded"
        self.add_argument("--redis", default="", metavar="URL", help=known)
        self.add_argument("--run", metavar="NAME", help="the run's name, where the server holds several")
