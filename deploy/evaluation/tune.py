"""The rules that are tuned per price: the file that names them, and how they are chosen on the training families."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import yaml

from actors.config import ConfigError
from actors.errors import UserError
from actors.rules.names import parse_rule
from actors.slots.objective import Prices
from deploy.config.user_file import read_yaml
from deploy.evaluation.play import EpisodeResult
from deploy.evaluation.players import BEST, FIXED, GAP, TRIAL
from deploy.evaluation.suite import ALL_PRICES, CONDITIONS, PRICES

RULES_FILE = Path(__file__).with_name("rules.yaml")
"""The rules that come with the package."""
TunedRules = Mapping[str, Mapping[Prices, str]]
"""By line and price."""

_TRIALS = tuple(
    f"trial:{sizes}@{start}-{left}{surrender}"
    for sizes, start, left, surrender in product(
        ("double", "quad", "double+quad"), (0, 1, 3), (1, 2, 4), ("", ",surrender=0.5")
    )
)
_COLUMNS = tuple(f"fixed-column:{size}@{epoch}" for size, epoch in product(("double", "quad"), (1, 3, -15, -10)))
_LOSSES = ("gap=0.05,still=0.02", "gap=0.1,still=0.02", "gap=0.1,still=0.05")
CANDIDATES: dict[str, tuple[str, ...]] = {
    BEST: ("never", "periodic", *_COLUMNS, "fixed-column:quad*2@1", *_TRIALS),
    TRIAL: _TRIALS,
    FIXED: _COLUMNS,
    GAP: tuple(f"gap:size={size},{losses}" for size, losses in product(("double", "quad"), _LOSSES)),
}
"""What is tried for each line."""


def read_rules(path: Path) -> dict[str, dict[Prices, str]]:
    """Read the rules by line and price. Raises `UserError` for files without a valid rule for each price."""
    try:
        data = read_yaml(path)
        found = {
            str(line): {w: str(given[name][w.doubling]) for name, group in CONDITIONS.items() for w in group}
            for line, given in data.items()
        }
        for by_price in found.values():
            for rule in by_price.values():
                parse_rule(rule)
    except ConfigError as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        prices = ", ".join(f"{p:g}" for p in PRICES)
        raise UserError(
            f"{path}: name a rule for each of the prices {prices} under {' and '.join(CONDITIONS)} in every line"
        ) from error
    return found


def write_rules(rules: TunedRules, path: Path) -> None:
    """Write the file that `read_rules` reads."""
    header = (
        "# The rules of the lines that are tuned per price, on the training families only: chosen by\n"
        "# `tamiyo evaluate --suite train --tune --rules FILE`.\n"
    )
    data = {
        line: {name: {w.doubling: by_price[w] for w in group} for name, group in CONDITIONS.items()}
        for line, by_price in rules.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(header + yaml.safe_dump(data, sort_keys=False))


def choose(results: Mapping[str, Mapping[Prices, Mapping[str, Sequence[EpisodeResult]]]]) -> dict[Prices, str]:
    """Return for each price the rule with the highest J; `results` are by rule, price and family, which count
    equally."""

    def mean(rule: str, price: Prices) -> float:
        families = results[rule][price].values()
        return float(np.mean([np.mean([result.objective(price) for result in family]) for family in families]))

    return {w: max(results, key=lambda rule: mean(rule, w)) for w in ALL_PRICES}
