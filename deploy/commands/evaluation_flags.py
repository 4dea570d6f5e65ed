"""Command-line options of `tamiyo evaluate` and `tamiyo study`."""

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
    many = {"type": Path, "nargs": "+", "metavar": "PATH"}
    runs = "run folders or checkpoint files"
    parser.add_argument("--checkpoint", dest="checkpoints", **many, help=runs)  # type: ignore[arg-type]
    parser.add_argument("--blind", **many, help="policies trained with policy.blind")  # type: ignore[arg-type]
    also = "further policies to compare, such as ablations; policies with the same NAME share a row"
    parser.add_argument("--also", nargs="+", metavar="NAME=PATH", help=also)
    player = (
        "rules to compare, such as gap or fixed-column:same@3 (docs/rules.md); need no --checkpoint; the suite models "
        "also takes checkpoints and addresses"
    )
    parser.add_argument("--player", dest="players", nargs="+", metavar="RULE", help=player)
    suite = "suite of task families, or models: the scripts of examples/models (docs/models.md) (default: heldout)"
    parser.add_argument("--suite", choices=(*SUITES, MODELS), default="heldout", help=suite)
    families = "only these families of the suite, or these scripts of the suite models"
    parser.add_argument("--families", nargs="+", metavar="NAME", help=families)
    price = "suite models: points per doubling of the parameters in J (default: 1; other suites play 0.5, 1, 2 and 4)"
    parser.add_argument("--price", type=float, help=price)
    parser.add_argument("--seeds", type=int, help="paired episodes per family (default: 16), or seeds per model (3)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="worker processes (default: one per core)"
    )
    out = "output folder (default: results/sweep; runs/models for the suite models)"
    parser.add_argument("--out", type=Path, metavar="DIR", help=out)
    cells = "folder of played episodes, which are not played again (default: cells/ in the output folder)"
    parser.add_argument("--cells", type=Path, metavar="DIR", help=cells)
    kept = "also report all policies whose episodes are in the folder of cells, as without any policy"
    parser.add_argument("--kept", action="store_true", help=kept)
    rules = "rules of the lines that are tuned per price (default: those of the package)"
    parser.add_argument("--rules", type=Path, metavar="FILE", help=rules)
    tune = "choose the rules that are tuned per price, on --suite train, and write them to --rules"
    parser.add_argument("--tune", action="store_true", help=tune)
    epochs = "epochs per episode, for quick trials (default: as in training)"
    parser.add_argument("--horizon", type=int, dest="horizon_epochs", metavar="HORIZON", help=epochs)
    parser.add_argument(
        "--inner-steps", "--inner_steps", type=int, help="minibatches per epoch (default: as in training)"
    )
    parser.add_argument("--quick", action="store_true", help="a smoke test: few families, seeds and epochs")
    scripts = "suite models: folder of its scripts (default: examples/models of the repository)"
    parser.add_argument("--scripts", type=Path, metavar="DIR", help=scripts)
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in vars(parser.parse_args(args)).items()}
    for name in given:
        if name not in OF_BOTH and (name in OF_MODELS) != (given["suite"] == MODELS):
            raise UserError(f"--suite {given['suite']} has no use for --{name.replace('_', '-')}: leave it out")
    return given


def study_flags(args: list[str]) -> argparse.Namespace:
    """Parse `file`, `only`, `list` and `tables`. Raises `UserError` for invalid options."""
    parser = CommandParser("study", "Run a list of trainings and evaluations; finished ones are skipped.")
    parser.add_argument("file", type=Path, metavar="FILE", help="YAML file of the study, such as results/study.yaml")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="run only these entries and the ones they depend on"
    )
    parser.add_argument("--list", action="store_true", help="show which entries are finished, and run nothing")
    tables = "run nothing; update the tables and figures of a Markdown page from finished entries"
    parser.add_argument("--tables", type=Path, metavar="PAGE", help=tables)
    return parser.parse_args(args)
