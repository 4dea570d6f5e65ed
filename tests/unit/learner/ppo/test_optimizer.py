"""AdamW's groups hold each parameter once, without weight decay on norms, biases and embeddings."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from learner.ppo.optimizer import clip_gradients, make_optimizer
from tests.support.learning.toy import toy_network


def test_each_parameter_is_in_exactly_one_group_and_decays_only_where_it_should() -> None:
    network = toy_network()
    groups = make_optimizer(network, 1e-3, 0.1).param_groups
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert len(decays) == sum(len(group["params"]) for group in groups) == len(list(network.parameters()))
    for name, p in network.named_parameters():
        owner = network.get_submodule(name.rpartition(".")[0])
        small = isinstance(owner, nn.LayerNorm | nn.Embedding) or "bias" in name.rpartition(".")[2]
        assert decays[id(p)] == (0.0 if small else 0.1), name


def test_a_parameter_that_no_group_claims_is_refused() -> None:
    network = toy_network()
    network.extra = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"extra\.weight belongs to 0 groups"):
        make_optimizer(network, 1e-3, 0.0)


def test_gradient_norms_are_those_of_the_named_parts() -> None:
    network = toy_network()
    optimizer = make_optimizer(network, 1e-3, 0.1)
    for p in network.parameters():
        p.grad = torch.randn_like(p)
    network.critic[0].weight.grad = None
    before = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}

    def norm_of(*modules: str) -> float:
        return float(sum(g.double().square().sum() for name, g in before.items() if name.startswith(modules)) ** 0.5)

    parts = {"trunk": ("encoder", "core", "norm"), "heads": ("heads",), "critic": ("critic",)}
    norm, norms = clip_gradients(optimizer, 0.25)
    assert float(norm) == pytest.approx(norm_of(""), rel=1e-5)
    expected = {f"grad_norm_{name}": norm_of(*modules) for name, modules in parts.items()}
    assert {name: float(own) for name, own in norms.items()} == pytest.approx(expected, rel=1e-4)
    for _ in range(2):  # at first it clips, then nothing is left to clip
        for name, g in before.items():
            assert torch.allclose(network.get_parameter(name).grad * norm / 0.25, g, rtol=1e-4)
        clip_gradients(optimizer, 10.0)
