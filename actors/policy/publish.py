"""Conversion between a network and published weights, which contain everything that acting needs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from actors.config import PolicyConfig
from actors.errors import UserError
from actors.policy.distribution import floor_mass
from actors.policy.network import FactoredRecurrentActorCritic
from actors.types.spaces import Spaces
from actors.types.weights import WeightSet

NOT_ARCHITECTURE = ("initial_log_std",)
"""Fields of `PolicyConfig` that do not affect the function computed: weights are compatible across their values."""


def policy_fields(spaces: Spaces, config: PolicyConfig) -> dict[str, Any]:
    """Return `PolicyConfig` as stored with the weights, with the values that are in force for `floor_mass: auto` and
    `head_size: null`."""
    return asdict(config) | {"floor_mass": floor_mass(config, spaces), "head_size": config.head_width}


def architecture_hash(spaces: Spaces, config: PolicyConfig) -> str:
    """Return a hash that is equal for compatible weights; with encoder `slots` it ignores the number of slots."""
    fields = {name: value for name, value in policy_fields(spaces, config).items() if name not in NOT_ARCHITECTURE}
    identity = spaces.family if config.encoder == "slots" else spaces.hash
    text = json.dumps({"policy": fields, "spaces": identity}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def to_weights(
    network: FactoredRecurrentActorCritic, version: int, generation: int, state_stride: int, burn_in: int = 0
) -> WeightSet:
    """Copy all parameters and statistics of `network` to a `WeightSet` on the CPU."""
    spaces = network.spaces
    architecture = {
        "policy": policy_fields(spaces, network.config),
        "spaces": json.loads(spaces.to_json()),
        "masked": network.masked,
    }
    tensors = {name: t.detach().cpu().clone().numpy() for name, t in network.state_dict().items()}
    text = json.dumps(architecture, sort_keys=True)
    return WeightSet(version, generation, spaces.hash, text, state_stride, tensors, burn_in)


def load_weights(network: FactoredRecurrentActorCritic, weights: WeightSet) -> None:
    """Copy published tensors into an existing network of the same architecture. Raises `UserError`."""
    try:
        network.load_state_dict({name: torch.from_numpy(t) for name, t in weights.tensors.items()})
        network.masked = is_masked(weights)
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"these weights do not fit the network ({' '.join(str(error).split()):.300})") from error


def spaces_of(weights: WeightSet) -> Spaces:
    """Return the spaces that the weights were trained with. Raises `UserError`."""
    return _described(weights)[0]


def config_of(weights: WeightSet) -> PolicyConfig:
    """Return the configuration of the network that the weights describe. Raises `UserError`."""
    return _described(weights)[1]


def is_masked(weights: WeightSet) -> bool:
    """Return whether a choice was illegal in what the weights have learned from, in spaces without slots. Raises
    `ValueError` or `AttributeError` for weights without a description."""
    return bool(json.loads(weights.architecture).get("masked", False))


def _described(weights: WeightSet) -> tuple[Spaces, PolicyConfig]:
    try:
        stored = json.loads(weights.architecture)
        return Spaces.from_json(json.dumps(stored["spaces"])), PolicyConfig(**stored["policy"])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise UserError(f"these weights have no valid description of their network ({error!r:.200})") from error


class _WithoutInit(TorchFunctionMode):
    """Leaves new parameters as they are, where weights replace them. Orthogonal matrices take longer to draw than all
    else; on the meta device, which has no values, PyTorch would import its compiler to draw any."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in ("normal_", "uniform_"):
            return args[0] if args else kwargs["tensor"]
        if func is torch.linalg.qr:  # of `orthogonal_`, whose matrices have at least as many rows as columns
            return args[0], args[0][: args[0].shape[1]]
        return func(*args, **kwargs)


def _require_shapes(weights: WeightSet, spaces: Spaces, config: PolicyConfig) -> None:
    """Raise `UserError` if the tensors do not match the network, before memory is allocated for it."""
    try:
        with torch.device("meta"), _WithoutInit():
            expected = {
                name: tuple(t.shape) for name, t in FactoredRecurrentActorCritic(spaces, config).state_dict().items()
            }
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError, OverflowError) as error:
        raise UserError(f"these weights describe a network that cannot be built ({error!r:.200})") from error
    given = {name: t.shape for name, t in weights.tensors.items()}
    if differing := [name for name in {**expected, **given} if expected.get(name) != given.get(name)]:
        name = differing[0]
        raise UserError(
            f"these weights do not match the network that they describe: {name} is {given.get(name, 'missing')}, "
            f"expected {expected.get(name, 'none')}"
        )


def from_weights(
    weights: WeightSet,
    device: torch.device | str = "cpu",
    spaces: Spaces | None = None,
    config: PolicyConfig | None = None,
) -> FactoredRecurrentActorCritic:
    """Build the network that the weights describe, in evaluation mode.

    `spaces` may differ from the stored ones in the number of slots, `config` in fields that are not part of the
    architecture. PyTorch's random number generator is left as it was, so that a training that loads a policy draws the
    same numbers as one that does not. Raises `UserError` if the weights do not fit.
    """
    stored_spaces, stored_config = _described(weights)
    spaces, config = spaces or stored_spaces, config or stored_config
    if architecture_hash(spaces, config) != architecture_hash(stored_spaces, stored_config):
        raise UserError(_difference(stored_spaces, stored_config, spaces, config))
    _require_shapes(weights, spaces, config)
    with torch.random.fork_rng(devices=[]), _WithoutInit():
        network = FactoredRecurrentActorCritic(spaces, config)
    load_weights(network, weights)
    return network.to(device).eval()


def _difference(stored: Spaces, config: PolicyConfig, wanted: Spaces, wanted_config: PolicyConfig) -> str:
    if stored.family != wanted.family:
        return (
            "these weights were trained in an environment with other observations or actions: "
            "use the environment that they were trained in"
        )
    if config.encoder == wanted_config.encoder == "flat":
        return (
            f"weights with policy.encoder flat only run with the {stored.slots} slots they were trained with, "
            f"not with {wanted.slots}"
        )
    ours, theirs = policy_fields(stored, config), policy_fields(wanted, wanted_config)
    differing = [f"policy.{name} {theirs[name]} (it was {ours[name]})" for name in ours if ours[name] != theirs[name]]
    return f"these weights have a different architecture than the configuration: {', '.join(differing)}"
