"""Command-line options of `tamiyo evaluate`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from actors.errors import UserError
from deploy.config.parser import CommandParser
from deploy.evaluation.suite import SUITES

MODELS = "models"
"""The suite of training scripts."""
OF_BOTH = ("suite", "players", "checkpoints", "families", "seeds", "jobs", "out", "quick")
OF_MODELS = ("price", "scripts")
"""Options that every suite has, and that only the suite of scripts has."""


def evaluation_flags(args: list[str]) -> dict[str, Any]:
    """Parse the options that are given, as fields of `EvaluateOptions`, or of `ModelsOptions` with --suite models.

    Raises `UserError` for invalid options.
    """
    parser = CommandParser("evaluate", "Compare trained policies with rules on held-out tasks (docs/evaluation.md).")
    parser.argument_default = argparse.SUPPRESS  # what is not given is left to the options' own defaults
    add, paths = parser.add_argument, {"type": Path, "nargs": "+", "metavar": "PATH"}
    add("--checkpoint", dest="checkpoints", help="run folders or checkpoint files", **paths)  # type: ignore[arg-type]
    add("--blind", help="policies trained with policy.blind", **paths)  # type: ignore[arg-type]
    also = "further policies to compare, such as ablations; policies with the same NAME share a row"
    add("--also", nargs="+", metavar="NAME=PATH", help=also)
    player = (
        "rules to compare, such as gap or fixed-column:same@3 (docs/rules.md); need no --checkpoint; the suite models "
        "also takes checkpoints and addresses"
    )
    add("--player", dest="players", nargs="+", metavar="RULE", help=player)
    suite = "suite of task families, or models: the scripts of examples/models (docs/models.md) (default: heldout)"
    add("--suite", choices=(*SUITES, MODELS), default="heldout", help=suite)
    families = "only these families of the suite, or these scripts of the suite models"
    add("--families", nargs="+", metavar="NAME", help=families)
    price = "suite models: points per doubling of the parameters in J (default: 1; other suites play 0.5, 1, 2 and 4)"
    add("--price", type=float, help=price)
    add("--seeds", type=int, help="paired episodes per family (default: 16), or seeds per model (3)")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes (default: one per core)")
    out = "output folder (default: results/sweep; runs/models for the suite models)"
    add("--out", type=Path, metavar="DIR", help=out)
    cells = "folder of played episodes, which are not played again (default: cells/ in the output folder)"
    add("--cells", type=Path, metavar="DIR", help=cells)
    kept = "also report all policies whose episodes are in the folder of cells, as without any policy"
    add("--kept", action="store_true", help=kept)
    add("--rules", type=Path, metavar="FILE", help="rules that are tuned per price (default: those of the package)")
    tune = "choose the rules that are tuned per price, on --suite train, and write them to --rules"
    add("--tune", action="store_true", help=tune)
    add("--quick", action="store_true", help="a smoke test: few families, seeds and epochs")
    scripts = "suite models: folder of its scripts (default: examples/models of the repository)"
    add("--scripts", type=Path, metavar="DIR", help=scripts)
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in vars(parser.parse_args(args)).items()}
    for name in given:
        if name not in OF_BOTH and (name in OF_MODELS) != (given["suite"] == MODELS):
            raise UserError(f"--suite {given['suite']} has no use for --{name.replace('_', '-')}: leave it out")
    return given
