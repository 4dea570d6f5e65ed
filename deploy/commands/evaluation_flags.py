"""Command-line options of `tamiyo evaluate`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from actors.errors import UserError
from deploy.config.parser import CommandParser
from deploy.evaluation.suite import SUITES

PRACTICAL = "practical"
"""The suite of training scripts."""
OF_BOTH = ("suite", "players", "checkpoints", "seeds", "jobs", "out", "cells", "kept", "quick")
OF_SCRIPTS = ("models", "widths", "price", "page", "scripts")
"""Options that every suite has, and that only the suite of scripts has."""


def evaluation_flags(args: list[str]) -> dict[str, Any]:
    """Parse the options that are given, as fields of `EvaluateOptions`, or of `PracticalOptions`.

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
        "rules to compare, such as gap or fixed-column:same@3 (docs/rules.md); need no --checkpoint; the suite "
        "practical also takes checkpoints and addresses"
    )
    add("--player", dest="players", nargs="+", metavar="RULE", help=player)
    suite = "suite of task families, or practical: training scripts (docs/practical.md) (default: heldout)"
    add("--suite", choices=(*SUITES, PRACTICAL), default="heldout", help=suite)
    add("--families", nargs="+", metavar="NAME", help="only these families of the suite")
    add("--models", nargs="+", metavar="NAME", help="suite practical: only these models")
    add("--widths", nargs="+", choices=("small", "right", "ample"), help="suite practical: only these widths")
    price = "suite practical: points per doubling of the parameters (default: 1; other suites play 0.5, 1, 2 and 4)"
    add("--price", type=float, help=price)
    add("--seeds", type=int, help="paired episodes per family (default: 16), or seeds per model (3)")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes (default: one per core)")
    out = "output folder (default: results/sweep; runs/practical for the suite practical)"
    add("--out", type=Path, metavar="DIR", help=out)
    cells = "folder of what was played, which is not played again (default: cells/ in the output folder)"
    add("--cells", type=Path, metavar="DIR", help=cells)
    kept = (
        "also report all policies whose episodes are in the folder of cells, as without any policy; suite practical: "
        "play nothing and report the cells that are there"
    )
    add("--kept", action="store_true", help=kept)
    add("--rules", type=Path, metavar="FILE", help="rules that are tuned per price (default: those of the package)")
    tune = "choose the rules that are tuned per price, on --suite train, and write them to --rules"
    add("--tune", action="store_true", help=tune)
    add("--quick", action="store_true", help="a smoke test: few families, seeds and epochs")
    page = "suite practical: also write the tables and figures into this page, such as docs/practical.md"
    add("--page", type=Path, metavar="FILE", help=page)
    scripts = "suite practical: folder of its scripts (default: examples/practical of the repository)"
    add("--scripts", type=Path, metavar="DIR", help=scripts)
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in vars(parser.parse_args(args)).items()}
    for name in given:
        if name not in OF_BOTH and (name in OF_SCRIPTS) != (given["suite"] == PRACTICAL):
            raise UserError(f"--suite {given['suite']} has no use for --{name.replace('_', '-')}: leave it out")
    return given
