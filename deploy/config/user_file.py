"""JSON and YAML that users hand in: whatever a file contains, it is parsed, or refused with one line."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import Any

import yaml

from actors.config import ConfigError
from actors.text_file import as_utf8

MAX_BYTES = 16 * 2**20


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. Raises `ValueError` for anything else, such as NaN, infinity and extreme nesting."""
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_yaml(path: Path) -> Any:
    """Read a YAML file of at most `MAX_BYTES`. Raises `ConfigError`."""
    text = read_text(path)
    try:
        return yaml.safe_load(text)
    except RecursionError:
        raise ConfigError(f"{path} is not valid YAML: it is nested too deeply") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error


def read_text(path: Path) -> str:
    """Read a file of at most `MAX_BYTES` in UTF-8. Raises `ConfigError`."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path} has more than {MAX_BYTES >> 20} MiB: is it the right file?")
    try:
        return as_utf8(data).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a text in UTF-8: {error}") from error


def _finite(text: str) -> float:
    if not isfinite(number := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return number
