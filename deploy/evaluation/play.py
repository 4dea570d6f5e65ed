"""Playing episodes for an evaluation: a policy, or hosts that are built wider, on the seeds of one family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import Any

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
    joined: int  # seeds in the model that is kept
    epochs: int
    illegal: int
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
    found = []
    played = wave(config, run_seed, seeds, NeverGrow, read_test=True, width_scale=scale)
    for (host, episode), narrow in zip(played, drawn.episodes, strict=True):
        untrained, left = narrow.accuracies[0], host.horizon_epochs - host.epoch  # after a panic
        result = replace(
            episode_result(host, episode),
            doublings=log2(host.growth.host_params / narrow.growth.host_params),
            compute=log2(host.growth.host_flops / narrow.growth.host_flops),
            curve=(untrained, *host.accuracies[1:], *[host.accuracies[-1]] * left),
        )
        found.append(replace(result, gain=result.gain + host.accuracies[0] - untrained))
    return found


def gain(host: HostEpisode, episode: Episode) -> float:
    """Return what an episode gained in accuracy, less fines: J without prices, in points."""
    final = host.standing
    return episode.telemetry["objective"] + final.accuracy - final.worth(host.prices)


def episode_result(host: HostEpisode, episode: Episode) -> EpisodeResult:
    """Return what an episode came to."""
    final = host.standing
    return EpisodeResult(
        seed=host.seed,
        gain=gain(host, episode),
        doublings=final.doublings,
        compute=final.compute_doublings,
        accuracy=final.accuracy,
        test_accuracy=episode.telemetry.get("test_accuracy", float("nan")),
        joined=sum(slot.stage in BLENDED for slot in host.lifecycle.slots),
        epochs=host.epoch,
        illegal=host.illegal_actions,
        ops=tuple(host.timeline.ops.count(op.name) for op in Op),
    )
