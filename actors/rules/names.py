"""The names of rules: `rule_policy` makes the policy that a name such as `fixed-column:double@3` stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from actors.blueprints.family import blueprint_index
from actors.config import ConfigError
from actors.config.env import MAX_SLOTS
from actors.policy.baselines import NeverGrow
from actors.rules.chooser import ChooserRule
from actors.rules.gains import GainModel, packaged_gains
from actors.rules.gap import GapRule, GapSettings
from actors.rules.schedule import NEVER, SIZES, Schedule, Scheduled, fixed_column
from actors.rules.trial import Trial, TrialRule
from actors.types.actions import ALPHA_SPEEDS_EPOCHS, ALPHA_TARGETS, BLENDS
from actors.types.spaces import Spaces

FORMS = (
    "never",
    "trial:SIZE[+SIZE...]@START-LEFT[,alpha=ALPHA][,surrender=SHARE]",
    "periodic:KEY=VALUE,...",
    "fixed-column:SIZE[*COLUMNS]@EPOCH",
    "gap:KEY=VALUE,...",
    "chooser",
)
DEFAULT_STREAM_RULE = (
    "periodic:blueprint=attention,start=0,every=3,seeds=3,blend=multiply,alpha=1,ramp=3,training=1,keep=all"
)
"""What `periodic` alone means: of the periodic schedules inside the stream, the best one over the training families."""

DEFAULT_TRIAL, DEFAULT_COLUMN = "trial:quad+double@0-2,alpha=0.7", "fixed-column:double@3"
"""What grows a user's model where nothing is named: if the contributions of columns are measured, and if not."""

_FIXED_COLUMN = re.compile(r"(\w+)(?:\*([0-9]+))?@([0-9]+|-[1-9][0-9]*)")  # size, columns, epoch

_TRIAL = re.compile(r"([\w+]+)@([0-9]+)-([0-9]+)(?:,(.*))?")  # sizes, first epoch, epochs left, settings

RuleFollower = NeverGrow | Scheduled | GapRule | ChooserRule | TrialRule
"""The policies that `rule_policy` returns."""


def is_rule(name: str) -> bool:
    """Return whether a text names a rule rather than a file or a server. What follows the colon is not checked."""
    return name.partition(":")[0] in _RULES


def parse_rule(name: str) -> Schedule | GapSettings | GainModel | Trial:
    """Return the settings that a name stands for. Raises `ConfigError` for a name that is no rule."""
    kind, _, text = name.partition(":")
    try:
        if text and kind in ("never", "chooser"):
            raise ValueError("it has no settings")
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
        case Trial() as trial:
            return TrialRule(spaces, trial)
        case GainModel() as gains:
            return ChooserRule(spaces, gains)
        case schedule:
            return NeverGrow(spaces) if schedule.seeds == 0 else Scheduled(spaces, schedule)


def _periodic(text: str) -> Schedule:
    chosen = _settings(text, dict(pair.split("=") for pair in DEFAULT_STREAM_RULE.partition(":")[2].split(",")))
    return Schedule(
        start=int(chosen["start"]),
        wait=int(chosen["every"]),
        seeds=int(chosen["seeds"]),
        blueprint=blueprint_index(chosen["blueprint"]),
        blend=_choice("blend", chosen["blend"], BLENDS),
        alpha_target=_alpha(chosen["alpha"]),
        alpha_speed=_choice("ramp", chosen["ramp"], [str(n) for n in ALPHA_SPEEDS_EPOCHS]),
        training=int(chosen["training"]),
        keep_above=None if chosen["keep"] == "all" else float(chosen["keep"]),
    )


def _fixed_column(text: str) -> Schedule:
    found = _FIXED_COLUMN.fullmatch(text)
    columns = int(found[2] or 1) if found else 0
    if found is None or not 0 < columns <= MAX_SLOTS:
        raise ValueError(
            "write a size and an epoch, as in fixed-column:double@3 or fixed-column:double@-10, and possibly a number "
            "of columns, as in fixed-column:quad*2@3"
        )
    return fixed_column(_column(found[1]), int(found[3]), columns)


def _trial(text: str) -> Trial:
    found = _TRIAL.fullmatch(text)
    if found is None:
        raise ValueError(
            "write sizes, a first epoch and the epochs that are left, as in trial:quad+double@0-2, and possibly the "
            "alpha at which a column joins, and the share of the price below which it is given up half way, as in "
            "trial:double@1-2,alpha=0.7,surrender=0.5"
        )
    sizes = found[1].split("+")
    if len(set(sizes)) < len(sizes):
        raise ValueError("each size can be tried once")
    chosen = _settings(found[4] or "", {"alpha": "0.5", "surrender": ""})
    surrender = float(chosen["surrender"]) if chosen["surrender"] else None
    return Trial(tuple(map(_column, sizes)), int(found[2]), int(found[3]), _alpha(chosen["alpha"]), surrender)


def _gap(text: str) -> GapSettings:
    chosen = _settings(text, {"size": "double", "gap": "0.1", "still": "0.02", "epochs": "2", "start": "3"})
    gap, still, epochs, start = (chosen[name] for name in ("gap", "still", "epochs", "start"))
    return GapSettings(_column(chosen["size"]), float(gap), float(still), int(epochs), int(start))


def _column(size: str) -> int:
    _choice("size", size, list(SIZES))
    return blueprint_index(f"column_{size}")


def _alpha(value: str) -> int:
    return _choice("alpha", value, [f"{a:g}" for a in ALPHA_TARGETS])


def _choice(name: str, value: str, known: Sequence[str]) -> int:
    if value not in known:
        raise ValueError(f"{name} is {value!r}: choose from {', '.join(known)}")
    return known.index(value)


def _settings(text: str, defaults: Mapping[str, str]) -> dict[str, str]:
    chosen = dict(defaults)
    for pair in filter(None, text.split(",")):
        key, equals, value = pair.partition("=")
        if not equals or key not in defaults:
            raise ValueError(f"{pair!r} is none of its settings {', '.join(f'{k}=' for k in defaults)}")
        chosen[key] = value
    return chosen


_RULES: dict[str, Callable[[str], Schedule | GapSettings | GainModel | Trial]] = {
    "never": lambda text: NEVER,
    "trial": _trial,
    "periodic": _periodic,
    "fixed-column": _fixed_column,
    "gap": _gap,
    "chooser": lambda text: packaged_gains(),
}
