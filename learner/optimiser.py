"""AdamW over named parameter groups; each parameter is in exactly one of them."""

from __future__ import annotations

import torch
from torch import nn

from actors.policy.network import FactoredRecurrentActorCritic

MODULES = {"trunk": ("encoder", "core", "norm"), "heads": ("heads",), "critic": ("critic",)}


def parameter_groups(network: FactoredRecurrentActorCritic, weight_decay: float) -> list[dict[str, object]]:
    """Groups `trunk`, `heads`, `critic`, each split by decay: none on norms, biases and embeddings."""
    plain = {
        f"{name}.{parameter}"
        for name, module in network.named_modules()
        if isinstance(module, nn.LayerNorm | nn.Embedding)
        for parameter, _ in module.named_parameters(recurse=False)
    }
    groups: dict[tuple[str, bool], list[nn.Parameter]] = {}
    for name, p in network.named_parameters():
        owners = [group for group, modules in MODULES.items() if name.split(".")[0] in modules]
        if len(owners) != 1:
            raise ValueError(f"parameter {name} belongs to {len(owners)} groups of {list(MODULES)}")
        decays = name not in plain and "bias" not in name.rsplit(".", 1)[-1]
        groups.setdefault((owners[0], decays), []).append(p)
    return [
        {"params": parameters, "name": name, "weight_decay": weight_decay if decays else 0.0}
        for (name, decays), parameters in groups.items()
    ]


def make_optimiser(network: FactoredRecurrentActorCritic, lr: float, weight_decay: float) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameter_groups(network, weight_decay), lr=lr, eps=1e-5, fused=True)


def gradient_norms(optimiser: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Norm per named group, before the clip."""
    squares: dict[str, torch.Tensor] = {}
    for group in optimiser.param_groups:
        grads = [p.grad for p in group["params"] if p.grad is not None]
        norms = torch._foreach_norm(grads) if grads else []
        total = torch.stack(list(norms)).square().sum() if norms else torch.zeros(())
        squares[group["name"]] = squares.get(group["name"], torch.zeros_like(total)) + total
    return {name: square.sqrt() for name, square in squares.items()}
