"""Encoders: from a flat observation to the core's input and one encoding per slot, for the slot pointer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from actors.config import PolicyConfig
from actors.policy.normalizer import ObservationNormalizer
from actors.types.spaces import Spaces


class Encoded(NamedTuple):
    """Output of an encoder."""

    core_input: Tensor  # [N, core_input_size]
    slots: Tensor  # [N, S, encoder_size]


def _encoder(inputs: int, outputs: int) -> nn.Sequential:
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, 2.0**0.5)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(linear, nn.LayerNorm(outputs), nn.ReLU())


class SlotEncoder(nn.Module):
    """Encodes base features and slots separately, and pools the encodings of slots with a seed (mean and max).

    All slots share one encoder. The parameters do not depend on the number of slots, permuting the slots only permutes
    `Encoded.slots`, and empty slots have no effect on the core's input: a policy that learned on models with many slots
    acts alike on models with few, as far as the same choices are legal.
    """

    def __init__(self, spaces: Spaces, config: PolicyConfig) -> None:
        super().__init__()
        self.base_size, self.slot_size = spaces.base_size, spaces.slot_size
        width = config.encoder_size
        self.base_normalizer = ObservationNormalizer(spaces.base_size)
        self.slot_normalizer = ObservationNormalizer(spaces.slot_size)
        self.blueprint = nn.Embedding(spaces.num_blueprints + 1, config.blueprint_embedding)  # index 0 = empty
        self.base = _encoder(spaces.base_size, width)
        self.slot = _encoder(spaces.slot_size + config.blueprint_embedding, width)
        self.core_input_size = 3 * width

    def split(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Split `obs [N, D]` into (base `[N, base_size]`, slots `[N, S, slot_size]`)."""
        slots = (obs.shape[1] - self.base_size) // self.slot_size
        return obs[:, : self.base_size], obs[:, self.base_size :].reshape(-1, slots, self.slot_size)

    def forward(self, obs: Tensor, blueprint_indices: Tensor) -> Encoded:
        base, slots = self.split(obs)
        base = self.base(self.base_normalizer(base))
        features = torch.cat([self.slot_normalizer(slots), self.blueprint(blueprint_indices + 1)], -1)
        encoded = self.slot(features)
        filled = (blueprint_indices >= 0).unsqueeze(-1).to(encoded.dtype)
        seeds = encoded * filled
        mean = seeds.sum(1) / filled.sum(1).clamp(min=1.0)
        return Encoded(torch.cat([base, mean, seeds.amax(1)], -1), encoded)

    def update_normalizer(self, obs: Tensor) -> Tensor:
        """See `ObservationNormalizer.update`."""
        base, slots = self.split(obs)
        return self.base_normalizer.update(base) + self.slot_normalizer.update(slots.flatten(0, 1))


class FlatEncoder(nn.Module):
    """Encodes the whole observation as one vector; a slot's encoding is a learned embedding of its index."""

    def __init__(self, spaces: Spaces, config: PolicyConfig) -> None:
        super().__init__()
        width = config.encoder_size
        inputs = spaces.obs_size + spaces.slots * config.blueprint_embedding
        self.normalizer = ObservationNormalizer(spaces.obs_size)
        if spaces.slots:
            self.blueprint = nn.Embedding(spaces.num_blueprints + 1, config.blueprint_embedding)  # index 0 = empty
            self.slot = nn.Embedding(spaces.slots, width)
        self.base = _encoder(inputs, width)
        self.slots, self.width = spaces.slots, width
        self.core_input_size = width

    def forward(self, obs: Tensor, blueprint_indices: Tensor) -> Encoded:
        features = self.normalizer(obs)
        if not self.slots:
            return Encoded(self.base(features), features.new_zeros(obs.shape[0], 0, self.width))
        features = torch.cat([features, self.blueprint(blueprint_indices + 1).flatten(1)], -1)
        return Encoded(self.base(features), self.slot.weight.expand(obs.shape[0], -1, -1))

    def update_normalizer(self, obs: Tensor) -> Tensor:
        """See `ObservationNormalizer.update`."""
        return self.normalizer.update(obs)


def make_encoder(spaces: Spaces, config: PolicyConfig) -> SlotEncoder | FlatEncoder:
    slotted = config.encoder == "slots" and spaces.slots > 0
    return SlotEncoder(spaces, config) if slotted else FlatEncoder(spaces, config)
