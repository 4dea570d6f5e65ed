"""Pages of the documentation that are made from the code: settings, observations, actions, metrics.

python -m deploy.config.reference docs/reference
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args, get_type_hints

from actors.env.env import seed_spaces
from actors.env.slots.observation_table import markdown_table
from actors.metrics.registry import FAMILIES, METRICS, SERVE, Metric
from actors.types.actions import RELEVANT_HEADS, Op
from deploy.config.schema import PRESETS, Config

MADE = "<!-- Made by `python -m deploy.config.reference docs/reference`: change the code instead. -->\n"

SETTINGS_TOLD = (
    "Settings come from a preset, then from a YAML file (`--config`), then from flags: `learner.lr` is `lr` under "
    "`learner` in the file, and `--learner.lr` on the command line. Unknown keys and impossible values are refused "
    "with the reason. `config.yaml` in a run's folder holds what was in force."
)
OBSERVATIONS_TOLD = (
    "One table for training, serving and growing a model of one's own. The flat observation is the base features, then "
    "the slot features of each slot in turn. Which blueprint grows in each slot goes in beside it, as "
    "`blueprint_indices`: int64, -1 where the slot is empty."
)
ACTIONS_TOLD = (
    "An action is one choice per head. `op` is drawn first, then `slot` given the op, then the others given both. "
    "A head that the op makes irrelevant takes its first choice and counts nowhere: not in the probability, the ratio, "
    "the entropy, the KL or the loss."
)
HEADS_TOLD = (
    "A blueprint with two names is the first in an MLP and the second in a convolutional host; `noop` is never legal. "
    "Blueprints of your own come after these."
)
MASKS_TOLD = (
    "`WAIT` is always legal. The masks in force for the drawn op are stored with the step, so that the learner sees "
    "the distribution that was acted on."
)
METRICS_TOLD = (
    "Declared once, in `actors/metrics/registry.py`. The name below is the one in `metrics.jsonl` and TensorBoard. "
    "Prometheus "
    "has `tamiyo_` in front and `_` for `/`, and `_total` behind counters; what Ray exports has `ray_` before that. Of "
    'a family, the part behind `/` becomes a label: `entropy/op` is `tamiyo_head_entropy{head="op"}`.'
)


def pages() -> dict[str, str]:
    """Every page by its file name."""
    made = {
        "configuration.md": configuration(),
        "observations.md": observations(),
        "actions.md": actions(),
        "metrics.md": metrics(),
    }
    return {name: f"{MADE}\n{text.rstrip()}\n" for name, text in made.items()}


def configuration() -> str:
    parts = ["# Settings", SETTINGS_TOLD]
    for section in dataclasses.fields(Config):
        cls = get_type_hints(Config)[section.name]
        parts += [f"## {section.name}", inspect.cleandoc(cls.__doc__ or ""), _settings(section.name, cls)]
    parts += ["## Presets", "What each preset changes.", _presets()]
    return "\n\n".join(parts)


def _settings(section: str, cls: type) -> str:
    told, hints = field_docs(cls), get_type_hints(cls)
    rows = []
    for field in dataclasses.fields(cls):
        default = f"`{_value(field.default)}`"
        rows.append((f"`{section}.{field.name}`", _kind(hints[field.name]), default, told[field.name]))
    return table(("setting", "type", "default", "meaning"), rows)


def field_docs(cls: type) -> dict[str, str]:
    """The text below each field of a dataclass, on one line."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    told = {}
    for line, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(line, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            assert isinstance(line.target, ast.Name)
            told[line.target.id] = " ".join(str(after.value.value).split())
    return told


def _kind(hint: Any) -> str:
    choices = [choice for part in (hint, *get_args(hint)) for choice in get_args(part) if isinstance(choice, str)]
    if choices:
        return " ".join(f"`{choice}`" for choice in dict.fromkeys(choices))
    names = [getattr(part, "__name__", str(part)) for part in get_args(hint) or (hint,) if part is not Ellipsis]
    many = " ..." if getattr(hint, "__origin__", None) is tuple else ""
    return " or ".join("null" if name == "NoneType" else name for name in names) + many


def _value(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "[]"
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'


def _presets() -> str:
    rows = []
    for name, preset in PRESETS.items():
        for section in dataclasses.fields(Config):
            ours, plain = getattr(preset, section.name), getattr(Config(), section.name)
            for field in dataclasses.fields(plain):
                value = getattr(ours, field.name)
                if value != getattr(plain, field.name):
                    rows.append((f"`{name}`", f"`{section.name}.{field.name}`", f"`{_value(value)}`"))
    return table(("preset", "setting", "value"), rows)


def observations() -> str:
    return "\n\n".join(("# What the policy sees", OBSERVATIONS_TOLD, markdown_table()))


def actions() -> str:
    spec = seed_spaces(Config().env.slots).action
    heads = [(f"`{head.name}`", str(head.size), " ".join(f"`{c}`" for c in head.choices)) for head in spec.heads]
    relevant = [(f"`{op.name}`", " ".join(f"`{h}`" for h in RELEVANT_HEADS[op]) or "none") for op in Op]
    parts = ["# What the policy decides", ACTIONS_TOLD]
    parts += ["## Heads", table(("head", "choices", "which"), heads), HEADS_TOLD]
    parts += ["## Which heads matter", table(("op", "relevant heads besides `op`"), relevant), MASKS_TOLD]
    return "\n\n".join(parts)


def metrics() -> str:
    families = (
        ("The run", METRICS.values()),
        ("Families", (m._replace(name=f"{family}/{m.label.upper()}") for family, m in FAMILIES.items())),
        ("Policy endpoint", SERVE.values()),
    )
    parts = ["# Metrics", METRICS_TOLD]
    for title, declared in families:
        parts += [f"## {title}", _metrics(declared)]
    return "\n\n".join(parts)


def _metrics(declared: Iterable[Metric]) -> str:
    return table(("metric", "kind", "unit", "meaning"), [(f"`{m.name}`", m.kind, m.unit, m.help) for m in declared])


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    for name, text in pages().items():
        (Path(sys.argv[1]) / name).write_text(text)
