"""Flags of `tamiyo evaluate` and `tamiyo study`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from deploy.commands.parser import CommandParser
from deploy.evaluation.suite import SUITES
from deploy.evaluation.tune import SCHEDULES


def evaluation_flags(args: list[str]) -> argparse.Namespace:
    """As `Request` has them. Raises `UserError`."""
    parser = CommandParser(
        "evaluate", "Trained policies against tuned schedules on held-out tasks (docs/evaluation.md)."
    )
    many = {"type": Path, "nargs": "+", "default": [], "metavar": "PATH"}
    runs = "run folders or checkpoint files"
    parser.add_argument("--checkpoint", dest="checkpoints", **many, help=runs)  # type: ignore[arg-type]
    parser.add_argument("--blind", **many, help="policies trained with policy.blind")  # type: ignore[arg-type]
    also = "further lines of the table, such as ablations; a name may come more than once"
    parser.add_argument("--also", nargs="+", default=[], metavar="NAME=PATH", help=also)
    parser.add_argument("--suite", choices=SUITES, default="heldout", help="families that are played")
    parser.add_argument("--families", nargs="+", default=[], metavar="NAME", help="these of the suite alone")
    parser.add_argument("--rent-weight", "--rent_weight", type=float, default=5.0, help="of J (default: 5)")
    parser.add_argument("--policies", type=int, default=5, help="as many of the checkpoints at most (default: 5)")
    parser.add_argument("--seeds", type=int, default=20, help="paired episodes of each family (default: 20)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: evaluation/ in the first policy's run folder")
    parser.add_argument("--tune", action="store_true", help="first choose the schedules anew; alone it needs no policy")
    select = "first choose the best schedule of each family of the suite that FILE has none for"
    parser.add_argument("--select", action="store_true", help=select)
    parser.add_argument("--configurations", type=int, default=64, help="schedules of each kind to tune (default: 64)")
    parser.add_argument("--rungs", type=int, default=4, help="rounds of halving, 1 to 4 (default: 4)")
    schedules = "tuned ones, or with --tune and --select where they go (default: those that come with the package)"
    parser.add_argument("--schedules", type=Path, default=SCHEDULES, metavar="FILE", help=schedules)
    epochs = "epochs of an episode, for a quick look; else as in training"
    parser.add_argument("--horizon", type=int, dest="horizon_epochs", metavar="HORIZON", help=epochs)
    parser.add_argument("--inner-steps", "--inner_steps", type=int, help="minibatches of an epoch, likewise")
    return parser.parse_args(args)


def study_flags(args: list[str]) -> argparse.Namespace:
    """`file`, `only`, `list`, `tables`. Raises `UserError`."""
    parser = CommandParser("study", "Runs a list of trainings and evaluations; what is finished is not repeated.")
    parser.add_argument("file", type=Path, metavar="FILE", help="such as results/study.yaml")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these entries and what they need")
    parser.add_argument("--list", action="store_true", help="show what is done and what is left, and run nothing")
    tables = "run nothing, but make the tables and pictures of a Markdown page anew from what is done"
    parser.add_argument("--tables", type=Path, metavar="PAGE", help=tables)
    return parser.parse_args(args)
