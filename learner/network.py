"""The network and the device that a learner starts with."""

from __future__ import annotations

import torch

from actors.config import PolicyConfig, require
from actors.errors import UserError
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import from_weights
from actors.types.spaces import Spaces
from actors.types.weights import WeightSet
from learner.run.checkpoint import Checkpoint


def pick_device(wanted: str) -> torch.device:
    """Return the device; `auto` uses CUDA if available. Raises `UserError` if CUDA is requested but not available."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("learner.device is cuda, but PyTorch finds no CUDA device: use auto or cpu")
    return torch.device("cuda" if wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available()) else "cpu")


def resumed_network(resume: Checkpoint, policy: PolicyConfig, spaces: Spaces) -> FactoredRecurrentActorCritic:
    """Return the network of a checkpoint. Raises `UserError` if the configuration has another architecture."""
    try:
        require(resume.weights.spaces_hash == spaces.hash, "it was trained with other spaces")
        return from_weights(resume.weights, spaces=spaces, config=policy).train()
    except UserError as error:
        raise UserError(
            f"the checkpoint's architecture differs from the configuration ({error}): "
            "resume with the run's own config.yaml"
        ) from error


def first_network(
    policy: PolicyConfig, spaces: Spaces, seed: int, resume: Checkpoint | None, init: WeightSet | None
) -> FactoredRecurrentActorCritic:
    """Return the network of `resume`, or one with the weights of `init`, or one initialized from `seed`."""
    if resume is not None:
        return resumed_network(resume, policy, spaces)
    if init is not None:
        return from_weights(init, spaces=spaces, config=policy).train()
    torch.manual_seed(seed)
    network = FactoredRecurrentActorCritic(spaces, policy)
    # Before the first update, values have no scale: an untrained critic would be wrong by about 1. Where rewards are
    # much smaller, advantages and the value statistics would be its noise for dozens of updates.
    torch.nn.init.zeros_(network.value_output.weight)
    return network
