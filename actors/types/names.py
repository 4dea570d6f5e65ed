"""Names of runs and of actors: parts of episode ids, of keys in the store and of paths."""

from __future__ import annotations

import re
from functools import lru_cache

NAME_RULE = "1 to 100 ASCII letters, digits, '.', '_' and '-', the first of them no '.' and no '-'"
NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}"  # as `lua/store.lua` has it


@lru_cache(1024)  # asked for every header, of a few names
def is_name(text: str) -> bool:
    """Whether `text` follows `NAME_RULE`."""
    return re.fullmatch(NAME, text) is not None
