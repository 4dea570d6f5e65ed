"""Playing episodes for an evaluation: a policy, or hosts that are built wider, on the seeds of one family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite, log2

import numpy as np

from actors.config import EnvConfig
from actors.env.episode.host_episode import HostEpisode
from actors.env.seed_fleet import SeedTrainingFleet
from actors.policy.baselines import NeverGrow
from actors.rollout.wave import Policy, Provenance, run_wave
from actors.slots.stage import Stage
from actors.types.episode import Episode
from actors.types.spaces import Spaces
from deploy.evaluation.flops import cost


@dataclass(frozen=True)
class Row:
    """One episode. J at a price w is `gain - w * rent`."""

    seed: int
    gain: float  # points of validation accuracy over the untrained host of the drawn width, less fines
    rent: float  # doublings of the drawn host's parameters, averaged over the horizon
    accuracy: float  # validation, at the end
    test_accuracy: float  # read once, at the end
    host_width: int  # as drawn
    host_params: int  # of the host of this width
    final_params: int
    fossilized: int
    started: int  # seeds germinated
    panic: bool
    epochs: int
    illegal: int
    finite: bool
    training_flops: float
    measuring_flops: float
    inference_flops: float
    curve: tuple[float, ...] = ()
    """Validation accuracy of hosts that never grow: untrained, and after each epoch of the horizon."""

    @property
    def doublings(self) -> float:
        """How often the number of parameters has doubled at the end."""
        return log2(self.final_params / self.host_params)

    @property
    def bare(self) -> bool:
        """Whether nothing was added."""
        return self.fossilized == 0 and self.final_params == self.host_params

    def objective(self, price: float) -> float:
        """Return J, in points."""
        return self.gain - price * self.rent


def play(
    policy: Callable[[Spaces], Policy],
    config: EnvConfig,
    run_seed: int,
    seeds: Sequence[int],
    deterministic: bool = True,
    read_test: bool = True,
    width_scale: int = 1,
) -> list[Row]:
    """Play one episode of each seed in one wave."""
    fleet = SeedTrainingFleet(config, len(seeds), run_seed, read_test=read_test, width_scale=width_scale)
    source = Provenance(version=0, generation=0, state_stride=1, run_seed=run_seed)
    episodes = run_wave(fleet, policy(fleet.spaces), seeds, source, deterministic)
    return [row(host, episode) for host, episode in zip(fleet.episodes, episodes, strict=True)]


def play_built(config: EnvConfig, run_seed: int, seeds: Sequence[int], scale: int = 1) -> list[Row]:
    """Play hosts that are built at `scale` times their drawn width and never grow.

    Gain and rent are relative to the host of the drawn width, as for every other player of the same episode.
    """
    drawn = SeedTrainingFleet(config, len(seeds), run_seed)
    drawn.reset(seeds)  # for the sizes and the untrained accuracies
    fleet = SeedTrainingFleet(config, len(seeds), run_seed, read_test=True, width_scale=scale)
    source = Provenance(version=0, generation=0, state_stride=1, run_seed=run_seed)
    episodes = run_wave(fleet, NeverGrow(fleet.spaces), seeds, source, True)
    return [
        _built(row(host, episode), narrow, host)
        for host, narrow, episode in zip(fleet.episodes, drawn.episodes, episodes, strict=True)
    ]


def _built(own: Row, narrow: HostEpisode, host: HostEpisode) -> Row:
    """`own` with gain and rent relative to the host of the drawn width, and with its curve."""
    left = host.horizon_epochs - host.epoch  # after a panic
    curve = (*host.accuracies, *[host.accuracies[-1]] * left)
    return replace(
        own,
        gain=own.gain + host.accuracies[0] - narrow.accuracies[0],
        rent=log2(own.final_params / narrow.growth.host_params),
        host_width=narrow.host.width,
        host_params=narrow.growth.host_params,
        curve=(narrow.accuracies[0], *curve[1:]),
    )


def gain_and_rent(host: HostEpisode, episode: Episode) -> tuple[float, float]:
    """Return what an episode gained, in points, and its rent, in doublings: J at a price w is gain - w * rent."""
    horizon = host.horizon_epochs
    unpaid = host.rents[-1] * (horizon - host.epoch)  # the governor charges it too
    rent = (sum(host.rents) + unpaid) / horizon
    return episode.telemetry["objective"] + host.rent_weight * rent, rent


def row(host: HostEpisode, episode: Episode) -> Row:
    """Return what an episode came to."""
    telemetry = episode.telemetry
    gain, rent = gain_and_rent(host, episode)
    spent = cost(host)
    values = (gain, rent, telemetry["final_accuracy"], float(np.sum(episode.rewards)), float(np.sum(episode.log_probs)))
    return Row(
        seed=host.seed,
        gain=gain,
        rent=rent,
        accuracy=telemetry["final_accuracy"],
        test_accuracy=telemetry.get("test_accuracy", float("nan")),
        host_width=host.host.width,
        host_params=host.growth.host_params,
        final_params=host.growth.host_params + host.added_params(),
        fossilized=sum(slot.stage is Stage.FOSSILIZED for slot in host.lifecycle.slots),
        started=host.germinations,
        panic=telemetry["panic"] > 0,
        epochs=host.epoch,
        illegal=host.illegal_actions,
        finite=all(map(isfinite, values)),
        training_flops=spent.training,
        measuring_flops=spent.measuring,
        inference_flops=spent.inference,
    )
