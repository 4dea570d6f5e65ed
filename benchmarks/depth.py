"""Does depth pay at practical size? Residual models of the suite `practical` that grow deeper while they train.

    python -m benchmarks.depth [--quick] [--json FILE] [--widths small right] [--seeds 3] [--figure FILE]

Each model is played as it is; built with twice as many residual blocks; with these blocks added at the start of an
epoch, one after each of its own and the identity at first (their last layer is zero); with seeds in its stream, one
after each block from before the first epoch on; and with the rule that lets a column of twice the width join.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import tamiyo
from actors.env.rendering.palette import MUTED, STYLE
from benchmarks.form import parser, publish
from deploy.evaluation.practical.runs import FOLDER

STARTS = (0, 4, 8)  # epochs at whose start the blocks are added
DEPTH = "built twice as deep"
COLOURS = ("#0072b2", "#cc79a7", "#e69f00", "#009e73", "#56b4e9", "#d55e00", "#a6761d", "#333333")


class Model(NamedTuple):
    """A script, how it is made twice as deep, and what grows in its stream."""

    script: str
    text: str
    deeper: str
    blocks: list[str]
    blueprint: str
    family: str
    widths: dict[str, int]


MODELS = (
    Model(
        "char_transformer", 'for _ in "12"', 'for _ in "1234"', ["layers.0", "layers.1"],
        "mlp_wide", "vector", {"small": 24, "right": 48},
    ),
    Model(
        "resnet_glyphs", "ResidualBlock(channels)]", "ResidualBlock(channels), ResidualBlock(channels)]",
        ["stages.3", "stages.7", "stages.11"], "conv_heavy", "image", {"small": 8, "right": 16},
    ),
)  # fmt: skip


class Run(NamedTuple):
    accuracy: float  # in percent, on test rows
    parameters: int
    flops: float  # of all training, of those of the model as it is


class Stack:
    """Takes the place of a `GrowthController`: leaves every second block out, and adds it at the start of an epoch."""

    def __init__(self, start: int, model: nn.Module) -> None:
        self.model, self.left = model, start
        kinds = {"TransformerEncoderLayer": ("linear2", "self_attn.out_proj"), "ResidualBlock": ("norm2",)}
        self.new = [m for m in model.modules() if type(m).__name__ in kinds][1::2]
        for block in self.new:
            for parameter in (
                p for name in kinds[type(block).__name__] for p in block.get_submodule(name).parameters()
            ):
                nn.init.zeros_(parameter)
            block.forward = lambda x, *_, **__: x  # without a gradient, the optimizer leaves its parameters as they are

    def step(self, *_: float) -> SimpleNamespace:
        if self.left == 0:
            for block in self.new:
                del block.forward
        self.left -= 1
        return SimpleNamespace(op="", slot="", reason="")

    def shadow(self, _: object) -> None:
        """Nothing learns in isolation."""

    def export(self) -> nn.Module:
        return self.model


def play(model: Model, width: int, seed: int, player: str, epochs: int) -> tuple[Run, float]:
    """Return what a player did, and the FLOPs of a forward pass of its model."""
    source = (FOLDER / f"{model.script}.py").read_text(encoding="utf-8")
    start = int(player.rpartition(" ")[2]) if player.startswith("blocks added") else None
    if start is not None or player == DEPTH:
        assert model.text in source
        source = source.replace(model.text, model.deeper)
    stream = player == "seeds in the stream"
    controller = tamiyo.GrowthController

    def grow(network: nn.Module, *, optimizer: torch.optim.Optimizer, config: tamiyo.GrowthConfig) -> Any:
        if start is not None:
            return Stack(start, network)
        if stream:
            specs = {name: tamiyo.SlotSpec(family=model.family, width=channels(network, name)) for name in model.blocks}
            return controller(network, specs, optimizer, config=tamiyo.GrowthConfig(**vars(config) | {"columns": None}))
        return controller(network, optimizer=optimizer, config=config)

    count = len(model.blocks)
    policy = f"periodic:blueprint={model.blueprint},start=0,every=1,seeds={count},blend=add" if stream else "never"
    policy = "trial:double@0-2" if player == "a column of twice the width" else policy
    arguments = ["x", "--width", str(width), "--seed", str(seed), "--epochs", str(epochs), "--policy", policy]
    names: dict[str, Any] = {"__name__": "__main__"}
    with (
        patch("sys.argv", arguments),
        patch.object(tamiyo, "GrowthController", grow),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        exec(compile(source, f"{model.script}.py", "exec"), names)
    network, grower = names["model"], names["grower"]
    spent = 2.0 ** grower.log[-1].compute_doublings if isinstance(grower, controller) else 1.0
    with FlopCounterMode(display=False) as counter:
        network.train()(torch.zeros(2, 48, dtype=torch.long) if "tokens" in names else torch.zeros(2, 1, 16, 16))
    parameters = sum(p.numel() for p in network.parameters())
    return Run(100 * names["test_metric"], parameters, spent), float(counter.get_total_flops())


def channels(network: nn.Module, block: str) -> int:
    return [m for m in network.get_submodule(block).modules() if isinstance(m, nn.LayerNorm | nn.BatchNorm2d)][
        -1
    ].weight.numel()


def players() -> Iterator[str]:
    yield from ("as it is", DEPTH, *(f"blocks added in epoch {start}" for start in STARTS))
    yield from ("seeds in the stream", "a column of twice the width")


def play_all(model: Model, width: int, seed: int, epochs: int) -> dict[str, Run]:
    found: dict[str, Run] = {}
    bare = deep = 1.0
    for player in players():
        run, forward = play(model, width, seed, player, epochs)
        if player == "as it is":
            bare = forward
        elif player == DEPTH:
            deep = forward
            run = run._replace(flops=deep / bare)
        elif player.startswith("blocks added"):
            share = max(0, epochs - int(player.rpartition(" ")[2])) / epochs
            run = run._replace(flops=1.0 + share * (deep / bare - 1.0))
        found[player] = run
    return found


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """A panel for each model: mean accuracy against training FLOPs, a point a player."""
    kinds = list(dict.fromkeys((row["model"], row["width"]) for row in rows))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 3.2 * -(-len(kinds) // 2)), layout="constrained")
        panels = figure.subplots(-(-len(kinds) // 2), 2, squeeze=False).ravel()
        for ax, kind in zip(panels, kinds, strict=False):
            for tint, row in zip(COLOURS, (r for r in rows if (r["model"], r["width"]) == kind), strict=False):
                ax.errorbar([row["flops"]], [row["accuracy"]], [row["sd"]], fmt="o", color=tint, label=row["player"])
            ax.set_xscale("log", base=2)
            ax.xaxis.set_major_formatter("{x:g}")
            ax.set_title(f"{kind[0]}, width {kind[1]}", fontsize=10)
            ax.set_xlabel("training FLOPs, as it is = 1", color=MUTED)
            ax.set_ylabel("test accuracy in percent")
        panels[0].legend(fontsize=7)
        figure.savefig(file, facecolor="white")


def main() -> None:
    known = parser("depth", __doc__.split("\n")[0])
    known.add_argument("--widths", nargs="+", choices=("small", "right"), default=["small", "right"])
    known.add_argument("--seeds", type=int, default=3)
    known.add_argument("--figure", type=Path)
    options = known.parse_args()
    epochs = 2 if options.quick else 16
    rows = []
    for model in MODELS[1:] if options.quick else MODELS:
        for name in options.widths[:1] if options.quick else options.widths:
            width = model.widths[name]
            seeds = range(1 if options.quick else options.seeds)
            played = [play_all(model, width, seed, epochs) for seed in seeds]
            for player in players():
                runs = [found[player] for found in played]
                gained = [r.accuracy - f["as it is"].accuracy for r, f in zip(runs, played, strict=True)]
                doublings = np.log2(runs[0].parameters / played[0]["as it is"].parameters)
                rows.append({
                    "model": model.script, "width": width, "player": player,
                    "accuracy": fmean(r.accuracy for r in runs),
                    "sd": stdev(r.accuracy for r in runs) if len(runs) > 1 else 0.0,
                    "parameters": fmean(r.parameters for r in runs), "flops": fmean(r.flops for r in runs),
                    "J": fmean(gained) - float(doublings),
                })  # fmt: skip
                print(rows[-1], flush=True)
    if options.figure:
        draw(rows, options.figure)
    publish(rows, [], options.json)


if __name__ == "__main__":
    main()
