"""Checks of settings, and the values that may be ranges."""

from __future__ import annotations

from typing import TypeVar

from actors.errors import UserError

Number = TypeVar("Number", int, float)


class ConfigError(UserError, ValueError):
    """An invalid setting. The message says which one, why, and what to do."""


def require(condition: bool, message: str) -> None:
    """Raise `ConfigError` with `message` unless `condition` holds."""
    if not condition:
        raise ConfigError(message)


def require_least(config: object, section: str, least: int, *names: str) -> None:
    """Raise `ConfigError` unless these settings of a section are null, or `least` or more."""
    why = f"it must be at least {least}" if least else "it cannot be negative"
    for name in names:
        value = getattr(config, name)
        require(value is None or value >= least, f"{section}.{name} is {value}: {why}")


def require_positive(config: object, section: str, *names: str) -> None:
    """Raise `ConfigError` unless these settings of a section are null, or positive."""
    for name in names:
        value = getattr(config, name)
        require(value is None or value > 0, f"{section}.{name} is {value}: it must be positive")


def span(value: Number | tuple[Number, Number]) -> tuple[Number, Number]:
    """Return the range that a setting names; a single number is a range of one."""
    return value if isinstance(value, tuple) else (value, value)


def require_range(name: str, value: float | tuple[float, float], least: float, why: str) -> None:
    """Raise `ConfigError` with `why` unless the range starts at `least` or above and is in order."""
    low, high = span(value)
    require(low >= least, f"{name} is {value}: {why}")
    require(low <= high, f"{name} is {value}: write the smaller number of a range first")
