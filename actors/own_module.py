"""Modules of the user's, such as his environments and tasks."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType


def add_working_directory() -> None:
    """Let modules in the working directory be imported: `python` does this, the `tamiyo` command does not."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())


def import_own(name: str) -> ModuleType:
    """Import a module, which may lie in the working directory. Raises whatever it raises."""
    add_working_directory()
    return import_module(name)
