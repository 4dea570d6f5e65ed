"""Read the spaces of an external environment from a JSON file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from actors.errors import UserError
from actors.types.actions import independent_spec
from actors.types.spaces import Spaces

EXAMPLE = '{"observation_size": 4, "actions": [2]}'


def read_spaces(path: Path) -> Spaces:
    """Read `{"observation_size": D, "actions": [n, ...]}`, with the number of choices of each head, or the output of
    `Spaces.to_json`. Raises `UserError`."""
    try:
        raw: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the spaces in {path} ({error.strerror}): give --spaces FILE.json") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}): write for example {EXAMPLE}") from error
    try:
        if "action" in raw:
            return Spaces.from_json(json.dumps(raw))
        size, actions = raw["observation_size"], raw["actions"]
        counts = [size, *actions]
        if (
            any(type(n) is not int or n < 1 for n in counts)
            or not actions
            or set(raw) - {"observation_size", "actions"}
        ):
            raise ValueError("sizes must be positive integers")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} does not describe spaces ({error!r}): write for example {EXAMPLE}") from error
    return Spaces.flat(independent_spec(actions), size)
