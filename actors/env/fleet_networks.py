"""`FleetNetworks`: the interface of the backends that train and evaluate the networks of a fleet."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from actors.env.episode.epoch import EpochPlan, EpochResult, HostEpoch, TwinEpoch
from actors.env.episode.host_episode import HostEpisode
from actors.slots.contributions import EvalResult, Validation

WEIGHT_DECAY, CLIP_NORM = 1e-4, 1.0
"""Of AdamW in hosts and seeds. The host and each seed are clipped separately."""


@dataclass(frozen=True)
class NetworkSettings:
    """How the networks of a fleet are trained. The last two fields apply to the torch backend only."""

    max_steps: int  # optimizer steps of an episode
    dtype: torch.dtype
    device: torch.device
    least_channels: int = 4  # CNNs are padded to this width at least
    cuda_graph: bool = False  # replay the steps of an epoch as a CUDA graph


class FleetNetworks(Protocol):
    """The hosts and seeds of `num_envs` environments, one network per environment.

    An epoch is `run_epoch`, then `roll_back` for each environment whose training broke down, then `commit`.
    """

    num_envs: int

    def reset(self, episodes: Sequence[HostEpisode], envs: Collection[int]) -> dict[int, Validation]:
        """Draw new hosts for `envs` and keep the others unchanged.

        `episodes` holds the episode of every environment. Return the validation result of each new host without
        seeds, by environment.
        """

    def can_train_twin(self, env: int) -> bool:
        """Return whether `train_twin` works for this environment's host."""

    def train_twin(self, env: int, epochs: Sequence[HostEpoch]) -> list[TwinEpoch]:
        """Train a copy of one environment's host alone, without seeds and columns, and evaluate it after each epoch.

        The environment itself is unchanged, bit for bit.
        """

    def run_epoch(self, plans: Sequence[EpochPlan | None]) -> list[EpochResult | None]:
        """Prune, germinate, train and evaluate as planned; environments without a plan idle."""

    def commit(self, pruned: Sequence[tuple[int, ...]]) -> None:
        """Remove the seeds of the slots `pruned` (by environment), then save the state for `roll_back`."""

    def roll_back(self, env: int, pruned: tuple[int, ...]) -> Validation:
        """Restore the last committed parameters of one environment, without the seeds of the slots `pruned`.

        Optimizer moments are cleared. Return the validation result of the restored network.
        """

    def evaluate_test(self, alphas: Mapping[int, Mapping[int, float]]) -> dict[int, EvalResult]:
        """Evaluate the environments in `alphas` (env -> slot -> alpha) on their test rows."""
