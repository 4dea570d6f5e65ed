"""AdamW over named parameter groups; each parameter is in exactly one of them."""

from __future__ import annotations

from inspect import unwrap

import torch
from torch import nn
from torch.optim import AdamW

from actors.policy.network import FactoredRecurrentActorCritic

WEIGHT_DECAY = 1e-4  # decoupled; 0 on norms, biases and embeddings
MODULES = {"trunk": ("encoder", "core", "norm"), "heads": ("heads", "gaussian"), "critic": ("critic",)}


class EagerAdamW(AdamW):
    """AdamW that is never compiled. PyTorch's own imports the compiler to say so, which takes a second of a core."""

    step = torch.no_grad()(unwrap(AdamW.step))
    add_param_group, zero_grad = unwrap(AdamW.add_param_group), unwrap(AdamW.zero_grad)
    state_dict, load_state_dict = unwrap(AdamW.state_dict), unwrap(AdamW.load_state_dict)


def parameter_groups(network: FactoredRecurrentActorCritic, weight_decay: float) -> list[dict[str, object]]:
    """Return the groups `trunk`, `heads` and `critic`, each split by weight decay: none on norms, biases and
    embeddings."""
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


def make_optimizer(network: FactoredRecurrentActorCritic, lr: float, weight_decay: float = WEIGHT_DECAY) -> AdamW:
    """Return AdamW for `network`, without weight decay on norms, biases and embeddings."""
    return EagerAdamW(parameter_groups(network, weight_decay), lr=lr, eps=1e-5, fused=True)


def descend(
    optimizer: torch.optim.Optimizer, loss: torch.Tensor, limit: float, stopped: torch.Tensor | None = None
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Take a step down the gradient of `loss`, whose global norm is clipped to `limit`, unless it is not finite or
    `stopped` is 1. Returns whether it was not finite, 0 or 1, and `grad_norm_GROUP`.

    While the optimizer's attribute `found_inf` is 1, on the device, a step changes nothing, neither moments nor
    counters: PyTorch's fused kernel reads it, and nothing here waits for the device.
    """
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    norm, by_group = clip_gradients(optimizer, limit)
    broken = (~norm.isfinite()).float()
    optimizer.found_inf = broken if stopped is None else torch.maximum(stopped, broken)  # type: ignore[attr-defined]
    optimizer.step()
    return broken, by_group


def clip_gradients(optimizer: torch.optim.Optimizer, limit: float) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Scale all gradients so that their global norm is at most `limit`. Returns the norm before scaling, and
    `grad_norm_GROUP`."""
    owners, grads = [], []
    for group in optimizer.param_groups:
        found = [p.grad for p in group["params"] if p.grad is not None]
        owners += [f"grad_norm_{group['name']}"] * len(found)
        grads += found
    squares = torch.stack(list(torch._foreach_norm(grads))).square()
    total = squares.sum().sqrt()
    torch._foreach_mul_(grads, (limit / (total + 1e-6)).clamp(max=1.0))
    by_name: dict[str, torch.Tensor] = {}
    for owner, square in zip(owners, squares, strict=True):
        by_name[owner] = square + by_name.get(owner, 0.0)
    return total, {name: square.sqrt() for name, square in by_name.items()}
