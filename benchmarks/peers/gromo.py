"""gromo, which grows the width of layers, on the MLP of the suite practical: `python -m benchmarks.peers.gromo`.

gromo computes new neurons from the gradients of one pass over the training rows (Verbockhaven et al., TMLR 2024). Here
each hidden layer grows periodically, from epoch 3 on, until it has twice its width. Data, splits, epochs, batches,
optimizer and J are those of `examples/practical/mlp_table.py`, whose lines are run up to the point where the model is
made; categories are one-hot, as gromo's MLP has no embeddings. It needs the extra `bench`. For convolutions gromo has
modules, but its residual networks grow inside blocks only and keep the width of the stream, so none of them is the
ResNet of the suite.
"""

from __future__ import annotations

import argparse
import sys
from math import log2
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from actors.slots.compute import TRAINING_PASSES
from deploy.evaluation.practical.runs import FOLDER, practical_models

START, EVERY = 3, 1  # epochs


def data_of(script: Path, width: int, seed: int) -> dict[str, Any]:
    """Run a script up to the line that makes its model, and return its variables."""
    source = script.read_text()
    names: dict[str, Any] = {}
    sys.argv = [str(script), "--width", str(width), "--seed", str(seed)]
    exec(compile(source[: source.index("\n\ndef make(")], str(script), "exec"), names)
    return names


FACTORS = (0.0, 0.1, 0.3, 1.0)  # tried for the new neurons


def grow(model: Any, x: Tensor, y: Tensor, neurons: int) -> int:
    """Let each hidden layer grow by up to `neurons`, from the statistics of all training rows. Return the passes over
    these rows: one forward and backward, and one forward for each factor."""
    for chosen in range(len(model._growable_layers)):
        model.set_growing_layers(index=chosen)
        model.init_computation()
        for rows in torch.arange(len(x)).split(256):
            model.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows], reduction="sum").backward()
            model.update_computation()
        model.compute_optimal_updates(maximum_added_neurons=neurons)
        model.reset_computation()
        model.dummy_select_update()
        best = (torch.inf, 0.0)
        for factor in FACTORS:
            model.set_scaling_factor(factor)
            with torch.no_grad():
                best = min(best, (F.cross_entropy(model.extended_forward(x), y).item(), factor))
        model.set_scaling_factor(best[1])
        model.apply_change()
    return len(model._growable_layers) * (TRAINING_PASSES + len(FACTORS))


def run(script: Path, width: int, seed: int, epochs: int) -> tuple[float, float, float]:
    """Return the test accuracy in percent, and the doublings of the parameters at the end and of the training FLOPs.

    FLOPs are counted as passes over the training rows times parameters, without the statistics that growing solves
    for."""
    from gromo.containers.growing_mlp import GrowingMLP

    own = data_of(script, width, seed)
    y, train, test = own["y"], own["train"], own["test"]
    hot = [F.one_hot(own["codes"][:, i], size).float() for i, size in enumerate(own["sizes"])]
    x = torch.cat([*hot, own["numbers"]], 1)
    torch.manual_seed(seed)
    model = GrowingMLP(x.shape[1], int(y.max()) + 1, width, 3, torch.nn.ReLU(), device=torch.device("cpu"))
    size = _params(model)
    optimizer, spent = torch.optim.AdamW(model.parameters(), lr=3e-3), 0.0
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for epoch in range(epochs):
        if epoch >= START and (epoch - START) % EVERY == 0 and model.layers[0].out_features < 2 * width:
            spent += grow(model, x[train], y[train], max(1, width // 4)) * _params(model)
            rate = optimizer.param_groups[0]["lr"]
            optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
            optimizer.param_groups[0]["initial_lr"] = 3e-3
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs, last_epoch=epoch)
        for rows in train[torch.randperm(len(train))].split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        scheduler.step()
        spent += TRAINING_PASSES * _params(model)
    with torch.no_grad():
        right = (model(x[test]).argmax(1) == y[test]).float().mean().item()
    return 100.0 * right, log2(_params(model) / size), log2(spent / (TRAINING_PASSES * epochs * size))


def _params(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description="Grow the MLP of the suite practical with gromo.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=16)
    options = parser.parse_args()
    (model,) = practical_models(("mlp_clarity",), FOLDER)
    for width in model.widths:
        runs = [run(model.path(FOLDER), width, seed, options.epochs) for seed in range(options.seeds)]
        test, doublings, compute = (sum(column) / len(runs) for column in zip(*runs, strict=True))
        print(f"{width:4} wide  test {test:5.1f}  doublings {doublings:.2f}, of FLOPs {compute:.2f}", flush=True)


if __name__ == "__main__":
    main()
