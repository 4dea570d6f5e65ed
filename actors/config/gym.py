"""Configuration of Gymnasium environments."""

from __future__ import annotations

import ast
import json
import math
import re
from dataclasses import dataclass
from typing import Any, Literal

from actors.config.checks import require, require_least

_NUMBERS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_WORDS = ("true", "false", "none", "null", "yes", "no", "on", "off")
_ATTEMPT = re.compile(
    r"[\[({\"'].*"  # a list, tuple, dict or text in quotes
    r"|[+-]?[\d_,]+(\.[\d_,]*)?(e[+-]?\d*)?"  # a number, but neither 8x8 nor 127.0.0.1
    r"|[\w.]+\(.*\)|(np|numpy|math)\.\w+",  # a call, a constant
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True)
class GymConfig:
    """A Gymnasium environment to train on instead of the seed-training environment; disabled if `id` is empty."""

    id: str = ""
    """Registered id, or module:Id to import a module or file first. For any other environment than seed hosts."""
    kwargs: tuple[str, ...] = ()
    """Arguments name=value: literals of JSON or Python, else strings. For environments with variants."""
    wrappers: tuple[str, ...] = ()
    """Wrappers, innermost first, as module:Class. For observations that the policy cannot use; not with vectorization
    own."""
    vectorization: Literal["sync", "async", "own"] = "sync"
    """One process, one each, or its own entry point. `async` for slow simulators, `own` for vectorized ones."""
    squash: bool = False
    """Squash continuous actions by tanh, not clip. For finite bounds whose extremes are often best."""
    max_segment_steps: int = 256
    """Steps after which a running episode is shipped and bootstrapped. Raise for long dependencies, lower if segments
    age."""

    def __post_init__(self) -> None:
        make_arguments(self.kwargs)
        for wrapper in self.wrappers:
            require(":" in wrapper, f"gym.wrappers holds {wrapper!r}: write module:Class")
        require(
            not self.wrappers or self.vectorization != "own",
            "gym.wrappers apply to single environments, which gym.vectorization own does not have: use sync or async",
        )
        require_least(self, "gym", 1, "max_segment_steps")


def make_arguments(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Return the arguments of `gymnasium.make` that name=value pairs stand for. Raises `ConfigError`."""
    return dict(map(_argument, pairs))


def _argument(pair: str) -> tuple[str, Any]:
    """Parse name=value. What looks like a literal and is none is an error: as text it would be true."""
    name, equals, value = (part.strip() for part in pair.partition("="))
    require(bool(equals) and name.isidentifier(), f"gym.kwargs holds {pair!r}: write name=value")
    for parse in (json.loads, ast.literal_eval, _NUMBERS.__getitem__):
        try:
            parsed = parse(value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, KeyError):
            continue
        if not isinstance(parsed, tuple) or value.startswith("("):  # 1,5 may be meant as 1.5
            return name, parsed
    require(
        value.lower() not in _WORDS and not _ATTEMPT.fullmatch(value),
        f"gym.kwargs holds {pair!r}, which looks like a literal and is none: write it as in Python or JSON, such as "
        f"{name}=False, {name}=1.5 or {name}=[1, 2], or as text in quotes: '{name}=\"{value}\"'",
    )
    return name, value
