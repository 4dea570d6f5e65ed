"""Command-line options of `tamiyo evaluate` and `tamiyo study`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from deploy.commands.parser import CommandParser
from deploy.evaluation.suite import SUITES
from deploy.evaluation.tune import SCHEDULES


def evaluation_flags(args: list[str]) -> argparse.Namespace:
    """Parse the fields of `EvaluateOptions`. Raises `UserError` for invalid options."""
    parser = CommandParser(
        "evaluate", "Compare trained policies with tuned schedules on held-out tasks (docs/evaluation.md)."
    )
    many = {"type": Path, "nargs": "+", "default": [], "metavar": "PATH"}
    runs = "run folders or checkpoint files"
    parser.add_argument("--checkpoint", dest="checkpoints", **many, help=runs)  # type: ignore[arg-type]
    parser.add_argument("--blind", **many, help="policies trained with policy.blind")  # type: ignore[arg-type]
    also = "further policies to compare, such as ablations; policies with the same NAME share a row"
    parser.add_argument("--also", nargs="+", default=[], metavar="NAME=PATH", help=also)
    parser.add_argument("--suite", choices=SUITES, default="heldout", help="suite of task families (default: heldout)")
    parser.add_argument("--families", nargs="+", default=[], metavar="NAME", help="only these families of the suite")
    parser.add_argument(
        "--rent-weight", "--rent_weight", type=float, default=5.0, help="rent weight of the objective J (default: 5)"
    )
    parser.add_argument("--policies", type=int, default=5, help="largest number of checkpoints to use (default: 5)")
    parser.add_argument("--seeds", type=int, default=20, help="paired episodes per family (default: 20)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="worker processes (default: one per core)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="output folder (default: evaluation/ in the first policy's run folder)"
    )
    parser.add_argument("--tune", action="store_true", help="tune the schedules first; needs no --checkpoint")
    select = "first select the best schedule for each family of the suite that --schedules lacks"
    parser.add_argument("--select", action="store_true", help=select)
    parser.add_argument(
        "--configurations", type=int, default=64, help="schedules to try per kind when tuning (default: 64)"
    )
    parser.add_argument("--rungs", type=int, default=4, help="rounds of successive halving, 1 to 4 (default: 4)")
    schedules = "tuned schedules; --tune and --select write them (default: those that ship with the package)"
    parser.add_argument("--schedules", type=Path, default=SCHEDULES, metavar="FILE", help=schedules)
    epochs = "epochs per episode, for quick trials (default: as in training)"
    parser.add_argument("--horizon", type=int, dest="horizon_epochs", metavar="HORIZON", help=epochs)
    parser.add_argument(
        "--inner-steps", "--inner_steps", type=int, help="minibatches per epoch (default: as in training)"
    )
    return parser.parse_args(args)


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
