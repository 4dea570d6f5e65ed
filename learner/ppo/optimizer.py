"""AdamW over named parameter groups; each parameter is in exactly one of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.adamw import adamw

from actors.policy.network import FactoredRecurrentActorCritic

WEIGHT_DECAY = 1e-4  # decoupled; 0 on norms, biases and embeddings
MODULES = {"trunk": ("encoder", "core", "norm"), "heads": ("heads", "gaussian"), "critic": ("critic",)}


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


class GatedAdamW(torch.optim.AdamW):
    """`torch.optim.AdamW(fused=True)` with one call for all groups of one weight decay. `found_inf` (0 or 1, on the
    device) skips a step, including moments and counters."""

    found_inf: torch.Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        merged: dict[tuple[float, ...], list[torch.Tensor]] = {}
        for group in self.param_groups:
            settings = (group["lr"], *group["betas"], group["eps"], group["weight_decay"])
            merged.setdefault(settings, []).extend(p for p in group["params"] if p.grad is not None)
        for (lr, beta1, beta2, eps, decay), parameters in merged.items():
            states = [self.state[p] or self._start(p) for p in parameters]
            adamw(
                parameters,
                [p.grad for p in parameters if p.grad is not None],
                [s["exp_avg"] for s in states],
                [s["exp_avg_sq"] for s in states],
                [],
                [s["step"] for s in states],
                fused=True,
                found_inf=self.found_inf,
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=lr,
                weight_decay=decay,
                eps=eps,
                maximize=False,
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in PyTorch, without its hooks."""
        if not set_to_none:
            super().zero_grad(set_to_none)
            return
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None

    def _start(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        state = {
            "step": torch.zeros((), device=p.device),
            "exp_avg": torch.zeros_like(p),
            "exp_avg_sq": torch.zeros_like(p),
        }
        self.state[p] = state
        return state


def make_optimizer(network: FactoredRecurrentActorCritic, lr: float, weight_decay: float = WEIGHT_DECAY) -> GatedAdamW:
    """Return AdamW for `network`, without weight decay on norms, biases and embeddings."""
    return GatedAdamW(parameter_groups(network, weight_decay), lr=lr, eps=1e-5, fused=True)


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
