"""Generate the tables of the reference pages: settings, observations, actions and metrics.

python -m deploy.config.reference docs/reference
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args, get_type_hints

from actors.metrics.registry import FAMILIES, METRICS, SERVE, Metric
from actors.slots.observation import BASE, SLOT
from actors.slots.spaces import seed_spaces
from actors.types.actions import RELEVANT_HEADS, Op
from deploy.config.convert import field_docs
from deploy.config.schema import PRESETS, Config


def filled(page: Path) -> str:
    """Return a page with new tables in place of the old ones, between `<!-- NAME -->` and `<!-- end of NAME -->`."""
    text = page.read_text(encoding="utf-8")
    for name, made in TABLES[page.name].items():
        before, start, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->")
        assert end, f"{page} has no place for {name}"
        text = f"{before}{start}\n{made()}\n\n{end}{after}"
    return text


def settings() -> str:
    """All settings, by section."""
    parts = []
    for section, cls in get_type_hints(Config).items():
        docs, hints = field_docs(cls), get_type_hints(cls)
        lines = [
            f"- `{section}.{field.name}` ({_values(field.default, hints[field.name])}): {docs[field.name]}"
            for field in dataclasses.fields(cls)
        ]
        parts += [f"## {section}", inspect.cleandoc(cls.__doc__ or ""), "\n".join(lines)]
    return "\n\n".join(parts)


def _values(default: object, hint: Any) -> str:
    """The default, then other choices, or the type where the default does not show it."""
    choices = [choice for part in (hint, *get_args(hint)) for choice in get_args(part) if isinstance(choice, str)]
    others = [f"`{choice}`" for choice in dict.fromkeys(choices) if choice != default]
    if default is None or isinstance(default, str):
        others += [part.__name__ for part in get_args(hint) if part in (int, float, str)]
    return ", ".join([f"`{_value(default)}`", *others])


def _value(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "[]"
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'


def presets() -> str:
    """The settings that each preset changes."""
    rows = []
    for name, preset in PRESETS.items():
        changed = [
            f"`{section}.{key}` {_value(value)}"
            for section, values in vars(preset).items()
            for key, value in vars(values).items()
            if value != getattr(getattr(Config(), section), key)
        ]
        rows.append((f"`{name}`", ", ".join(changed)))
    return table(("preset", "settings"), rows)


def features() -> str:
    """The parts of an observation."""
    rows = []
    for title, part in (("base", BASE), ("slot", SLOT)):
        index = 0
        for f in part:
            indices = f"{title} {index}" + (f"-{index + f.size - 1}" if f.size > 1 else "")
            rows.append((indices, f"`{f.name}`", str(f.size), f"{f.low:g} to {f.high:g}", f.meaning))
            index += f.size
    return table(("index", "feature", "size", "range", "meaning"), rows)


def heads() -> str:
    """The heads of an action."""
    spec = seed_spaces(Config().env.total_slots).action
    rows = [(f"`{head.name}`", str(head.size), " ".join(f"`{c}`" for c in head.choices)) for head in spec.heads]
    return table(("head", "size", "choices"), rows)


def relevance() -> str:
    """The relevant heads of each op."""
    rows = [(f"`{op.name}`", " ".join(f"`{h}`" for h in RELEVANT_HEADS[op]) or "none") for op in Op]
    return table(("op", "relevant heads besides `op`"), rows)


def metrics(declared: Iterable[Metric]) -> str:
    """The declarations of some metrics."""
    return table(("metric", "kind", "unit", "meaning"), [(f"`{m.name}`", m.kind, m.unit, m.help) for m in declared])


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Format a Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "configuration.md": {"settings": settings, "presets": presets},
    "observations.md": {"features": features},
    "actions.md": {"heads": heads, "relevance": relevance},
    "metrics.md": {
        "training": lambda: metrics(METRICS.values()),
        "families": lambda: metrics(m._replace(name=f"{name}/{m.label.upper()}") for name, m in FAMILIES.items()),
        "server": lambda: metrics(SERVE.values()),
    },
}
"""The generated tables, by page and name."""

if __name__ == "__main__":
    for page in (Path(sys.argv[1]) / name for name in TABLES):
        page.write_text(filled(page), encoding="utf-8")
