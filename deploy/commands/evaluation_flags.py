"""Options of `tamiyo evaluate`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from actors.errors import UserError
from deploy.config.parser import FieldParser

PRACTICAL = "practical"
"""The suite of training scripts."""
OF_SCRIPTS = ("models", "widths", "price", "page", "scripts")
OF_FAMILIES = ("blind", "also", "families", "rules", "tune")
"""Options that only the suite of scripts has, and those that only the others have."""


@dataclass(frozen=True)
class EvaluateOptions:
    """Who plays what, and where it is kept."""

    checkpoint: tuple[Path, ...] = ()
    """Run folders or checkpoint files."""
    blind: tuple[Path, ...] = ()
    """Policies trained with policy.blind."""
    also: tuple[str, ...] = ()
    """NAME=PATH: further policies to compare, such as ablations; policies with the same NAME share a row."""
    player: tuple[str, ...] = ()
    """Rules to compare, such as gap or fixed-column:same@3 (docs/rules.md); need no --checkpoint. The suite practical
    also takes checkpoints and addresses."""
    suite: Literal["heldout", "mlbench", "train", "practical"] = "heldout"
    """Suite of task families, or practical: training scripts (docs/practical.md) (default: heldout)."""
    families: tuple[str, ...] = ()
    """Only these families of the suite."""
    models: tuple[str, ...] = ()
    """Suite practical: only these models."""
    widths: tuple[Literal["small", "right", "ample"], ...] = ("small", "right", "ample")
    """Suite practical: only these widths."""
    price: float = 1.0
    """Suite practical: points per doubling of the parameters (default: 1; other suites play 0.5, 1, 2 and 4)."""
    seeds: int | None = None
    """Paired episodes per family (default: 16), or seeds per model (3)."""
    jobs: int = field(default_factory=lambda: os.cpu_count() or 1)
    """Worker processes (default: one per core)."""
    out: Path | None = None
    """Output folder (default: results/sweep; runs/practical for the suite practical)."""
    cells: Path | None = None
    """Folder of what was played, which is not played again (default: cells/ in the output folder)."""
    kept: bool = False
    """Also report all policies whose episodes are in the folder of cells, as without any policy; suite practical: play
    nothing and report the cells that are there."""
    rules: Path | None = None
    """Rules that are tuned per price (default: those of the package)."""
    tune: bool = False
    """Choose the rules that are tuned per price, on --suite train, and write them to --rules."""
    quick: bool = False
    """A smoke test: few families, seeds and epochs."""
    page: Path | None = None
    """Suite practical: also write the tables and figures into this page, such as docs/practical.md."""
    scripts: Path | None = None
    """Suite practical: folder of its scripts (default: examples/practical of the repository)."""

    def __post_init__(self) -> None:
        practical = self.suite == PRACTICAL
        useless = OF_FAMILIES if practical else OF_SCRIPTS
        for option in fields(self):
            if option.name in useless and getattr(self, option.name) != option.default:
                raise UserError(f"--suite {self.suite} has no use for --{option.name}: leave it out")
        if self.price < 0:
            raise UserError(f"--price is {self.price:g}: it cannot be negative")
        for name, value, least in (("seeds", self.seeds, 1 if practical else 2), ("jobs", self.jobs, 1)):
            if value is not None and value < least:
                raise UserError(f"--{name} is {value}: it must be at least {least}")
        if self.tune and self.suite != "train":
            raise UserError("--tune plays training families: add --suite train")
        if self.tune and self.rules is None:
            raise UserError("--tune needs --rules FILE, the file to write the chosen rules to")

    @property
    def folder(self) -> Path:
        """The output folder."""
        return self.out or Path("runs/practical" if self.suite == PRACTICAL else "results/sweep")

    @property
    def cells_folder(self) -> Path:
        return self.cells or self.folder / "cells"


def evaluate_options(args: list[str]) -> EvaluateOptions:
    """Parse the options. Raises `UserError`."""
    about = "Compare trained policies with rules on held-out tasks (docs/evaluation.md)."
    return FieldParser("evaluate", about).parse_fields(EvaluateOptions, args)
