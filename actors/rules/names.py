"""The names of rules: `rule_policy` makes the policy that a name such as `fixed-column:double@3` stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from actors.blueprints.family import blueprint_index
from actors.config import MAX_SLOTS, ConfigError
from actors.policy.baselines import NeverGrow
from actors.rules.chooser import ChooserRule
from actors.rules.gains import ColumnChoice, GainModel, packaged_gains
from actors.rules.gap import GapRule, GapSettings
from actors.rules.schedule import NEVER, Schedule, Scheduled
from actors.types.actions import ALPHA_SPEEDS_EPOCHS, ALPHA_TARGETS, BLENDS
from actors.types.spaces import Spaces

SIZES = ("half", "same", "double", "quad")
"""Sizes of columns by name: half, one, two and four times the width of the model."""
FORMS = ("never", "periodic:KEY=VALUE,...", "fixed-column:SIZE[*COLUMNS]@EPOCH", "gap:KEY=VALUE,...", "chooser")
DEFAULT_STREAM_RULE = (
    "periodic:blueprint=attention,start=0,every=3,seeds=3,blend=multiply,alpha=1,ramp=3,training=1,keep=all"
)
"""What `periodic` alone means: of the periodic schedules inside the stream, the best one over the training families."""

_FIXED_COLUMN = re.compile(r"(\w+)(?:\*([0-9]+))?@([0-9]+|-[1-9][0-9]*)")  # size, columns, epoch

RuleFollower = NeverGrow | Scheduled | GapRule | ChooserRule
"""The policies that `rule_policy` returns."""


def is_rule(name: str) -> bool:
    """Return whether a text names a rule rather than a file or a server. What follows the colon is not checked."""
    return name.partition(":")[0] in _RULES


def parse_rule(name: str) -> Schedule | GapSettings | GainModel:
    """Return the settings that a name stands for. Raises `ConfigError` for a name that is no rule."""
    kind, _, text = name.partition(":")
    try:
        return _RULES[kind](text)
    except (KeyError, ValueError) as error:
        because = f" ({error})" if kind in _RULES else ""
        raise ConfigError(
            f"{name!r} is not a rule{because}: the rules are {', '.join(FORMS)}; docs/rules.md explains them"
        ) from error


def rule_policy(name: str, spaces: Spaces) -> RuleFollower:
    """Return the policy that a name stands for, with the interface of `actors.policy.baselines`.

    Its state is a few numbers per model. Raises `ConfigError` for a name that is no rule, and for spaces without the
    ops that rules need.
    """
    match parse_rule(name):
        case GapSettings() as settings:
            return GapRule(spaces, settings)
        case GainModel() as gains:
            return ChooserRule(spaces, gains)
        case schedule:
            return NeverGrow(spaces) if schedule.seeds == 0 else Scheduled(spaces, schedule)


def _never(text: str) -> Schedule:
    if text:
        raise ValueError("it has no settings")
    return NEVER


def _periodic(text: str) -> Schedule:
    own = _settings(text, dict(pair.split("=") for pair in DEFAULT_STREAM_RULE.partition(":")[2].split(",")))
    return Schedule(
        kind="periodic",
        start=int(own["start"]),
        wait=int(own["every"]),
        seeds=int(own["seeds"]),
        blueprint=blueprint_index(own["blueprint"]),
        blend=_choice("blend", own["blend"], BLENDS),
        alpha_target=_choice("alpha", own["alpha"], [f"{a:g}" for a in ALPHA_TARGETS]),
        alpha_speed=_choice("ramp", own["ramp"], [str(n) for n in ALPHA_SPEEDS_EPOCHS]),
        training=int(own["training"]),
        keep_above=None if own["keep"] == "all" else float(own["keep"]),
    )


def _fixed_column(text: str) -> Schedule:
    return column_choice(text).schedule


def column_choice(text: str) -> ColumnChoice:
    """Return what `SIZE@EPOCH` or `SIZE*COLUMNS@EPOCH` stands for. Raises `ValueError`."""
    found = _FIXED_COLUMN.fullmatch(text)
    columns = int(found[2] or 1) if found else 0
    if found is None or not 0 < columns <= MAX_SLOTS:
        raise ValueError(
            "write a size and an epoch, as in fixed-column:double@3 or fixed-column:double@-10, and possibly a number "
            "of columns, as in fixed-column:quad*2@3"
        )
    return ColumnChoice(SIZES[_choice("size", found[1], SIZES)], int(found[3]), columns)


def _gap(text: str) -> GapSettings:
    own = _settings(text, {"size": "double", "gap": "0.1", "still": "0.02", "epochs": "2", "start": "3"})
    return GapSettings(
        _column(own["size"]), float(own["gap"]), float(own["still"]), int(own["epochs"]), int(own["start"])
    )


def _chooser(text: str) -> GainModel:
    if text:
        raise ValueError("it has no settings")
    return packaged_gains()


def _column(size: str) -> int:
    return blueprint_index(f"column_{SIZES[_choice('size', size, SIZES)]}")


def _choice(name: str, value: str, known: Sequence[str]) -> int:
    if value not in known:
        raise ValueError(f"{name} is {value!r}: choose from {', '.join(known)}")
    return known.index(value)


def _settings(text: str, defaults: Mapping[str, str]) -> dict[str, str]:
    """Parse `key=value,...`."""
    own = dict(defaults)
    for pair in filter(None, text.split(",")):
        key, equals, value = pair.partition("=")
        if not equals or key not in defaults:
            raise ValueError(f"{pair!r} is none of its settings {', '.join(f'{k}=' for k in defaults)}")
        own[key] = value
    return own


_RULES: dict[str, Callable[[str], Schedule | GapSettings | GainModel]] = {
    "never": _never,
    "periodic": _periodic,
    "fixed-column": _fixed_column,
    "gap": _gap,
    "chooser": _chooser,
}
