"""The rules that are tuned per price: the file that names them, and how they are chosen on the training families."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import yaml

from actors.config import ConfigError
from actors.errors import UserError
from actors.rules.choices import SIZES
from actors.rules.names import parse_rule
from deploy.config.user_file import read_yaml
from deploy.evaluation.play import Row
from deploy.evaluation.players import BEST, FIXED, GAP
from deploy.evaluation.suite import PRICES

RULES_FILE = Path(__file__).with_name("rules.yaml")
"""The rules that come with the package."""
TunedRules = Mapping[str, Mapping[float, str]]
"""By line and price."""

COLUMN_EPOCHS = (1, 3, 8, -22, -15, -10, -7)
"""Negative ones are counted back from the end of the training."""
_COLUMNS = tuple(f"fixed-column:{size}@{epoch}" for size, epoch in product(SIZES, COLUMN_EPOCHS))
_PAIRS = tuple(f"fixed-column:{size}*2@{epoch}" for size, epoch in product(("double", "quad"), COLUMN_EPOCHS))
_LOSSES = ("gap=0.05,still=0.02", "gap=0.1,still=0.02", "gap=0.1,still=0.05")
CANDIDATES: dict[str, tuple[str, ...]] = {
    BEST: ("never", "periodic", "periodic:blueprint=column_quad,start=1,every=4,seeds=2,blend=add", *_COLUMNS, *_PAIRS),
    FIXED: _COLUMNS,
    GAP: tuple(f"gap:size={size},{losses}" for size, losses in product(SIZES, _LOSSES)),
}
"""What is tried for each line."""


def read_rules(path: Path, prices: Sequence[float] = PRICES) -> dict[str, dict[float, str]]:
    """Read the rules by line and price. Raises `UserError` for files without a valid rule for each price."""
    try:
        data = read_yaml(path)
        found = {str(line): {w: str(by_price[w]) for w in prices} for line, by_price in data.items()}
        for by_price in found.values():
            for rule in by_price.values():
                parse_rule(rule)
    except ConfigError as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        wanted = ", ".join(f"{w:g}" for w in prices)
        raise UserError(f"{path}: name a rule for each of the prices {wanted} in every line") from error
    return found


def write_rules(rules: TunedRules, path: Path) -> None:
    """Write the file that `read_rules` reads."""
    header = "# The rules of the lines that are tuned per price on the training families; see docs/evaluation.md.\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(header + yaml.safe_dump({line: dict(rule) for line, rule in rules.items()}, sort_keys=False))


def choose(
    rows: Mapping[str, Mapping[float, Mapping[str, Sequence[Row]]]], prices: Sequence[float]
) -> dict[float, str]:
    """Return for each price the rule with the highest J; `rows` are by rule, price and family, which count equally."""

    def mean(rule: str, price: float) -> float:
        families = rows[rule][price].values()
        return float(np.mean([np.mean([row.objective(price) for row in family]) for family in families]))

    return {w: max(rows, key=lambda rule: mean(rule, w)) for w in prices}
