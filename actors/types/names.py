"""Validation of run and actor names, which appear in episode ids, Redis keys and file paths."""

from __future__ import annotations

import re

NAME_RULE = "1 to 100 ASCII letters, digits, '.', '_' and '-', not starting with '.' or '-'"
NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}"  # the same pattern is in `lua/store.lua`


def is_name(text: str) -> bool:
    """Return whether `text` follows `NAME_RULE`."""
    return re.fullmatch(NAME, text) is not None
