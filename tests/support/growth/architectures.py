"""Architectures as people write them, each by a factory of its width, with an input. This file imports PyTorch alone,
and the library that a name begins with; it is copied beside programs that do not have Tamiyo."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class UNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.norm = nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width)
        self.inner = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.head = nn.Conv2d(2 * width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = F.relu(self.norm(self.down(x)))
        return self.head(torch.cat([skip, F.relu(self.up(F.relu(self.inner(skip))))], 1))


class GraphNet(nn.Module):
    """Two rounds of messages over an adjacency matrix; logits for each node."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, width), nn.Linear(width, width), nn.Linear(width, 3)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        passing = edges / edges.sum(1, keepdim=True).clamp(min=1.0)
        h = F.relu(self.first(passing @ nodes))
        return self.head(F.relu(self.second(passing @ h)))


def timm(name: str, scale: float) -> nn.Module:
    import timm

    widths = [int(c * scale) for c in (8, 8, 16, 16)]
    sizes = (
        {"stem_width": widths[0], "channels": widths} if name == "resnet10t" else {"dims": widths, "depths": [1] * 4}
    )
    return timm.create_model(name, in_chans=1, num_classes=3, **sizes)


def transformers(name: str, scale: float) -> nn.Module:
    import transformers as hf

    width, small = int(16 * scale), {"vocab_size": 20, "bos_token_id": 0, "eos_token_id": 1}
    if name == "GPT-2":
        return hf.GPT2LMHeadModel(hf.GPT2Config(n_positions=32, n_embd=width, n_layer=1, n_head=2, **small))
    sizes = {"hidden_size": width, "intermediate_size": width, "num_hidden_layers": 1, "num_attention_heads": 2}
    return hf.LlamaForCausalLM(hf.LlamaConfig(num_key_value_heads=2, **sizes, **small))


def _labels(count: int) -> Tensor:
    return torch.arange(count) % 3


ARCHITECTURES: dict[str, tuple[Callable[[float], nn.Module], Callable[[], tuple[Tensor, ...]], Callable[..., Any]]] = {
    "U-Net": (
        lambda scale: UNet(int(4 * scale)),
        lambda: (torch.randn(8, 1, 8, 8),),
        lambda out, x: F.mse_loss(out, x.roll(1, -1)),
    ),
    "graph network": (
        lambda scale: GraphNet(int(8 * scale)),
        lambda: (torch.randn(12, 6), (torch.rand(12, 12) < 0.3).float()),
        lambda out, nodes, edges: F.cross_entropy(out, _labels(len(out))),
    ),
    **{
        f"timm: {name}": (
            partial(timm, name),
            lambda: (torch.randn(6, 1, 32, 32),),
            lambda out, x: F.cross_entropy(out, _labels(len(x))),
        )
        for name in ("resnet10t", "convnext_atto")
    },
    **{
        f"transformers: {name}": (
            partial(transformers, name),
            lambda: (torch.randint(20, (4, 8)),),
            lambda out, tokens: F.cross_entropy(out.logits.flatten(0, 1), tokens.roll(1, 1).flatten()),
        )
        for name in ("GPT-2", "Llama")
    },
}
"""By name: a factory of the scale, inputs, and the loss of an output and the inputs."""
