"""Playing episodes for an evaluation: a policy, or hosts that are built wider, on the seeds of one family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite, log2
from typing import Any

import numpy as np

from actors.config import EnvConfig
from actors.env.episode.host_episode import HostEpisode
from actors.env.seed_fleet import SeedTrainingFleet
from actors.policy.baselines import NeverGrow
from actors.rollout.wave import Policy, Provenance, run_wave
from actors.slots.objective import Prices, Standing
from actors.slots.stage import BLENDED
from actors.types.actions import Op
from actors.types.episode import Episode
from actors.types.spaces import Spaces


@dataclass(frozen=True)
class EpisodeResult:
    """What one episode came to. J is `gain - p * doublings - c * compute`."""

    seed: int
    gain: float  # points over the untrained host of the drawn width, on rows that no policy sees, less fines
    doublings: float  # of the drawn host's parameters, in the model that is kept
    compute: float  # doublings of the FLOPs that the drawn host's training takes without growth
    accuracy: float  # at the end, on the rows that J is made of
    test_accuracy: float  # read once, at the end
    host_width: int  # as drawn
    host_params: int
    started: int  # seeds germinated
    joined: int  # seeds in the model that is kept
    panic: bool
    epochs: int
    illegal: int
    finite: bool
    ops: tuple[int, ...]  # how often each op was executed, in the order of `Op`
    curve: tuple[float, ...] = ()
    """Accuracy of hosts that never grow, as `accuracy`: untrained, and after each epoch of the horizon."""

    @property
    def bare(self) -> bool:
        """Whether nothing was added."""
        return self.joined == 0 and self.doublings == 0.0

    @property
    def flops(self) -> float:
        """The FLOPs of training, in those of the drawn host without growth."""
        return float(2.0**self.compute)

    def objective(self, prices: Prices) -> float:
        """Return J, in points."""
        return Standing(self.gain, self.doublings, self.compute).worth(prices)


def wave(
    config: EnvConfig, run_seed: int, seeds: Sequence[int], policy: Callable[[Spaces], Policy], **fleet: Any
) -> list[tuple[HostEpisode, Episode]]:
    """Play one episode of each seed greedily in one wave; `fleet` are further arguments of the fleet."""
    made = SeedTrainingFleet(config, len(seeds), run_seed, **fleet)
    source = Provenance(version=0, generation=0, state_stride=1, run_seed=run_seed)
    episodes = run_wave(made, policy(made.spaces), seeds, source, True)
    return list(zip(made.episodes, episodes, strict=True))


def play(
    policy: Callable[[Spaces], Policy], config: EnvConfig, run_seed: int, seeds: Sequence[int], read_test: bool = True
) -> list[EpisodeResult]:
    """Play one episode of each seed in one wave."""
    return [episode_result(*played) for played in wave(config, run_seed, seeds, policy, read_test=read_test)]


def play_built(config: EnvConfig, run_seed: int, seeds: Sequence[int], scale: int = 1) -> list[EpisodeResult]:
    """Play hosts that are built at `scale` times their drawn width and never grow.

    Gain, doublings and compute are relative to the host of the drawn width, as for every other player.
    """
    drawn = SeedTrainingFleet(config, len(seeds), run_seed)
    drawn.reset(seeds)  # for the sizes and the untrained accuracies
    played = wave(config, run_seed, seeds, NeverGrow, read_test=True, width_scale=scale)
    return [_built(episode_result(*wide), narrow, wide[0]) for wide, narrow in zip(played, drawn.episodes, strict=True)]


def _built(wide: EpisodeResult, narrow: HostEpisode, host: HostEpisode) -> EpisodeResult:
    """Return `wide` relative to the host of the drawn width, with its curve."""
    left = host.horizon_epochs - host.epoch  # after a panic
    curve = (*host.accuracies, *[host.accuracies[-1]] * left)
    return replace(
        wide,
        gain=wide.gain + host.accuracies[0] - narrow.accuracies[0],
        doublings=log2(host.growth.host_params / narrow.growth.host_params),
        compute=log2(host.growth.host_flops / narrow.growth.host_flops),
        host_width=narrow.host.width,
        host_params=narrow.growth.host_params,
        curve=(narrow.accuracies[0], *curve[1:]),
    )


def gain(host: HostEpisode, episode: Episode) -> float:
    """Return what an episode gained in accuracy, less fines: J without prices, in points."""
    final = host.standing
    return episode.telemetry["objective"] + final.accuracy - final.worth(host.prices)


def episode_result(host: HostEpisode, episode: Episode) -> EpisodeResult:
    """Return what an episode came to."""
    telemetry, final = episode.telemetry, host.standing
    gained = gain(host, episode)
    values = (gained, *final, float(np.sum(episode.rewards)), float(np.sum(episode.log_probs)))
    return EpisodeResult(
        seed=host.seed,
        gain=gained,
        doublings=final.doublings,
        compute=final.compute_doublings,
        accuracy=final.accuracy,
        test_accuracy=telemetry.get("test_accuracy", float("nan")),
        host_width=host.host.width,
        host_params=host.growth.host_params,
        started=host.germinations,
        joined=sum(slot.stage in BLENDED for slot in host.lifecycle.slots),
        panic=telemetry["panic"] > 0,
        epochs=host.epoch,
        illegal=host.illegal_actions,
        finite=all(map(isfinite, values)),
        ops=tuple(host.timeline.ops.count(op.name) for op in Op),
    )
