"""AdamW's groups hold each parameter once, without weight decay on norms, biases and embeddings."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from learner.ppo.optimizer import EagerAdamW, clip_gradients, make_optimizer, parameter_groups
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


def test_it_steps_as_pytorchs_own_also_from_a_saved_state() -> None:
    networks = [toy_network()]
    networks.append(copy.deepcopy(networks[0]))
    for network, kind in zip(networks, (EagerAdamW, torch.optim.AdamW), strict=True):
        optimizer = kind(parameter_groups(network, 0.1), lr=1e-2, eps=1e-5, fused=True)
        for step in range(6):
            torch.manual_seed(step)
            optimizer.zero_grad(set_to_none=True)
            sum((p * torch.randn_like(p)).sin().sum() for p in network.parameters()).backward()  # type: ignore[union-attr]
            optimizer.step()
            optimizer.load_state_dict(optimizer.state_dict())
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*(n.parameters() for n in networks), strict=True))
    assert torch.is_grad_enabled()


def test_it_does_not_import_pytorchs_compiler() -> None:
    steps = """
import sys, torch
from learner.ppo.optimizer import EagerAdamW
p = torch.nn.Parameter(torch.ones(3))
optimizer = EagerAdamW([p], fused=True)
optimizer.zero_grad()
p.sum().backward()
optimizer.step()
optimizer.load_state_dict(optimizer.state_dict())
print("torch._dynamo" in sys.modules, p.detach().ne(1).all().item())
"""
    assert subprocess.check_output([sys.executable, "-c", steps], text=True).split() == ["False", "True"]


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
