"""Hypothesis strategies for damaged bytes, and for JSON with damaged values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

ODD_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
ODD_VALUES = (
    *(None, True, False, 0, -1, 1, 2**31, 2**53, 2**63, 10**400, -0.5, 1e308, float("nan"), float("inf")),
    *("", "x", "\ud800", "1", "9" * 5000, [], {}, [[]], [None], {"": 0}),
)


@st.composite
def damaged(draw: st.DrawFn, samples: Sequence[bytes]) -> bytes:
    """Draw a sample with one to five changes."""
    data = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(("flip", "put", "number", "cut", "drop", "repeat"))):
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "put":
                data[at:at] = draw(st.binary(min_size=1, max_size=12))
            case "number":
                number = draw(st.sampled_from(ODD_NUMBERS))
                size = max(1, -(-number.bit_length() // 8))
                data[at : at + size] = number.to_bytes(size, "little")
            case "cut":
                del data[at:]
            case "drop":
                del data[at : at + draw(st.integers(1, 40))]
            case "repeat":
                data[at:at] = data[at : at + draw(st.integers(1, 200))] * draw(st.integers(1, 20))
    return bytes(data)


@st.composite
def misfilled(draw: st.DrawFn, samples: Sequence[bytes]) -> bytes:
    """Draw a JSON sample with up to three values replaced, removed or duplicated, also in JSON nested in strings."""
    value = json.loads(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 3))):
        value = _changed(draw, value)
    return json.dumps(value).encode(errors="replace")


def _changed(draw: st.DrawFn, value: Any) -> Any:
    """Change one value at a random depth."""
    if isinstance(value, str) and value[:1] in ("{", "[") and draw(st.integers(0, 9)):
        return json.dumps(_changed(draw, json.loads(value)))
    if not isinstance(value, dict | list) or not value or not draw(st.integers(0, 9)):
        return draw(st.sampled_from(ODD_VALUES))
    items: list[tuple[Any, Any]] = list(value.items() if isinstance(value, dict) else enumerate(value))
    at = draw(st.integers(0, len(items) - 1))
    key, inner = items[at]
    match draw(st.sampled_from(("inside", "inside", "inside", "remove", "other"))):
        case "inside":
            items[at] = key, _changed(draw, inner)
        case "remove":
            del items[at]
        case _ if isinstance(value, dict):  # rename
            items[at] = f"{key}x", inner
        case _:  # duplicate
            items.insert(at, items[at])
    return dict(items) if isinstance(value, dict) else [inner for _, inner in items]
