"""The network as published weights, and back: nothing else is needed to act."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

import torch

from actors.config import MAX_FLOOR_MASS, PolicyConfig
from actors.errors import UserError
from actors.policy.distribution import floor_mass
from actors.policy.network import FactoredRecurrentActorCritic
from actors.types.spaces import Spaces
from actors.types.weights import WeightSet

NOT_ARCHITECTURE = ("compile",)
"""Fields of `PolicyConfig` that say how to compute, not what: runs that differ in them share weights."""
BEFORE = {"floor_mass": MAX_FLOOR_MASS}
"""Fields that older files lack, and the values that their policies were trained with."""


def policy_fields(spaces: Spaces, config: PolicyConfig) -> dict[str, Any]:
    """`PolicyConfig` as a file states it: with the floors' bound that is in force, whatever `auto` means later."""
    return asdict(config) | {"floor_mass": floor_mass(config, spaces)}


def architecture_hash(spaces: Spaces, config: PolicyConfig) -> str:
    """Equal where weights fit. With encoder `slots` nothing in them depends on the number of slots."""
    fields = {name: value for name, value in policy_fields(spaces, config).items() if name not in NOT_ARCHITECTURE}
    if fields["floor_mass"] == MAX_FLOOR_MASS:  # as in files without the field, which keep their hash
        del fields["floor_mass"]
    own = spaces.family if config.encoder == "slots" else spaces.hash
    text = json.dumps({"policy": fields, "spaces": own}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def to_weights(network: FactoredRecurrentActorCritic, version: int, generation: int, state_stride: int) -> WeightSet:
    """A copy of every parameter and statistic, on the CPU."""
    spaces = network.spaces
    architecture = {
        "hash": architecture_hash(spaces, network.config),
        "policy": policy_fields(spaces, network.config),
        "spaces": json.loads(spaces.to_json()),
    }
    tensors = {name: t.detach().cpu().clone().numpy() for name, t in network.state_dict().items()}
    text = json.dumps(architecture, sort_keys=True)
    return WeightSet(version, generation, spaces.hash, text, state_stride, tensors)


def load_weights(network: FactoredRecurrentActorCritic, weights: WeightSet) -> None:
    """Copy published tensors into an existing network of the same architecture. Raises `UserError`."""
    try:
        network.load_state_dict({name: torch.from_numpy(t) for name, t in weights.tensors.items()})
    except (RuntimeError, TypeError) as error:
        raise UserError(f"these weights do not fit the network ({' '.join(str(error).split()):.300})") from error


def spaces_of(weights: WeightSet) -> Spaces:
    """Those that the weights were trained in. Raises `UserError`."""
    return _described(weights)[0]


def _described(weights: WeightSet) -> tuple[Spaces, PolicyConfig]:
    try:
        told = json.loads(weights.architecture)
        return Spaces.from_json(json.dumps(told["spaces"])), PolicyConfig(**{**BEFORE, **told["policy"]})
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise UserError(f"these weights do not say which network they are of ({error!r:.200})") from error


def _require_shapes(weights: WeightSet, spaces: Spaces, config: PolicyConfig) -> None:
    """Raises `UserError` where the tensors are not those of this network, before there is memory set aside for it."""
    try:
        with torch.device("meta"):
            wanted = {
                name: tuple(t.shape) for name, t in FactoredRecurrentActorCritic(spaces, config).state_dict().items()
            }
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError, OverflowError) as error:
        raise UserError(f"these weights are of a network that cannot be built ({error!r:.200})") from error
    given = {name: t.shape for name, t in weights.tensors.items()}
    if differing := [name for name in {**wanted, **given} if wanted.get(name) != given.get(name)]:
        name = differing[0]
        raise UserError(
            f"these weights are not those of the network that they name: {name} is {given.get(name, 'missing')}, "
            f"expected {wanted.get(name, 'none')}"
        )


def from_weights(
    weights: WeightSet,
    device: torch.device | str = "cpu",
    spaces: Spaces | None = None,
    config: PolicyConfig | None = None,
) -> FactoredRecurrentActorCritic:
    """Build the network that the weights describe, in other `spaces` (of another number of slots) or under another
    `config` (compiled, say) where these are given. Raises `UserError` where the weights do not fit them."""
    own_spaces, own_config = _described(weights)
    spaces, config = spaces or own_spaces, config or own_config
    if architecture_hash(spaces, config) != architecture_hash(own_spaces, own_config):
        raise UserError(_difference(own_spaces, own_config, spaces, config))
    _require_shapes(weights, spaces, config)
    network = FactoredRecurrentActorCritic(spaces, config)
    load_weights(network, weights)
    return network.to(device).eval()


def _difference(own: Spaces, config: PolicyConfig, wanted: Spaces, wanted_config: PolicyConfig) -> str:
    if own.family != wanted.family:
        return "these weights are of an environment with other observations or actions: give the one they come from"
    if config.encoder == wanted_config.encoder == "flat":
        return f"weights with encoder flat run at the {own.slots} slots they were trained with, not at {wanted.slots}"
    ours, theirs = policy_fields(own, config), policy_fields(wanted, wanted_config)
    differing = [f"policy.{name} {theirs[name]} (it was {ours[name]})" for name in ours if ours[name] != theirs[name]]
    return f"these weights have another architecture than the configuration: {', '.join(differing)}"
