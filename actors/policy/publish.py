"""The network as published weights, and back: nothing else is needed to act."""

from __future__ import annotations

import json
from dataclasses import asdict

import torch

from actors.config import PolicyConfig
from actors.policy.network import FactoredRecurrentActorCritic
from actors.spaces import Spaces
from actors.weights import WeightSet


def to_weights(network: FactoredRecurrentActorCritic, version: int, generation: int, state_stride: int) -> WeightSet:
    """A copy of every parameter and statistic, on the CPU."""
    spaces = network.spaces
    architecture = {"policy": asdict(network.config), "spaces": json.loads(spaces.to_json())}
    tensors = {name: t.detach().cpu().clone().numpy() for name, t in network.state_dict().items()}
    text = json.dumps(architecture, sort_keys=True)
    return WeightSet(version, generation, spaces.hash, text, state_stride, tensors)


def load_weights(network: FactoredRecurrentActorCritic, weights: WeightSet) -> None:
    """Copy published tensors into an existing network of the same architecture."""
    network.load_state_dict({name: torch.from_numpy(t) for name, t in weights.tensors.items()})


def from_weights(weights: WeightSet, device: torch.device | str = "cpu") -> FactoredRecurrentActorCritic:
    """Build the network that the weights describe."""
    architecture = json.loads(weights.architecture)
    spaces = Spaces.from_json(json.dumps(architecture["spaces"]))
    network = FactoredRecurrentActorCritic(spaces, PolicyConfig(**architecture["policy"]))
    load_weights(network, weights)
    return network.to(device).eval()
