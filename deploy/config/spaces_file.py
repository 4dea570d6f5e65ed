"""Read the spaces of an external environment from a JSON file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from actors.errors import UserError
from actors.types.actions import Head, independent_spec
from actors.types.spaces import Spaces
from deploy.config.user_file import parse_json, read_text

EXAMPLE = '{"observation_size": 4, "actions": [2]}'


def read_spaces(path: Path) -> Spaces:
    """Read `{"observation_size": D, "actions": [n, ...], "continuous": [[low, high], ...]}`: the number of choices of
    each head, and the bounds of each continuous one, null where it has none. One of the two may be left out. The output
    of `Spaces.to_json` is also read. Raises `UserError`."""
    text = read_text(path)
    try:
        raw: Any = parse_json(text)
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}): write for example {EXAMPLE}") from error
    try:
        if "action" in raw:
            return Spaces.from_json(json.dumps(raw))
        size, actions, bounds = raw["observation_size"], raw.get("actions", []), raw.get("continuous", [])
        if any(type(n) is not int or n < 1 for n in [size, *actions]) or not [*actions, *bounds]:
            raise ValueError("sizes must be positive integers")
        if unknown := set(raw) - {"observation_size", "actions", "continuous"}:
            raise ValueError(f"unknown key {min(unknown)}")
        heads = []
        for k, (low, high) in enumerate(bounds):
            low, high = (None if x is None else float(x) for x in (low, high))
            if low is not None and high is not None and not low < high:
                raise ValueError(f"the bounds [{low}, {high}] are not in order")
            heads.append(Head(f"box[{k}]", ("value",), (low, high)))
        return Spaces.flat(independent_spec(actions, heads), size)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(f"{path} does not describe spaces ({error!r}): write for example {EXAMPLE}") from error
