"""Samplers: run a policy in the environments of one actor and return episodes. No Ray, no Redis.

`WaveSampler` runs seed-training environments in waves; `StreamSampler` keeps Gymnasium environments running between
calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, count
from typing import Any

from actors.config import ActingConfig, GymConfig
from actors.env.seed_fleet import SeedTrainingFleet, make_fleet
from actors.errors import UserError
from actors.gym.fleet import GymFleet, SeedOf
from actors.gym.make import make_vector_env
from actors.rng import Purpose, stream
from actors.rollout.stream import EpisodeStream
from actors.rollout.wave import Policy, Provenance, run_wave
from actors.types.episode import EndReason, Episode

STREAM_STEPS = 64  # steps of every environment between two checks for new weights
MAX_PLAYED_STEPS = 10_000  # an episode played for comparison is cut here and evaluated up to this step


class EpisodeSeeds:
    """Draws episode seeds as a function of run, actor and lineage.

    The lineage is the learner's generation, or the incarnation of an actor that is not the first of its name and must
    not repeat the seeds of its predecessors.
    """

    def __init__(self, run_seed: int, actor: int, incarnation: int | None) -> None:
        self._run_seed, self._actor, self._incarnation = run_seed, actor, incarnation
        self._draws = 0

    def draw(self, count: int, generation: int) -> list[int]:
        """Return the next `count` seeds."""
        lineage = generation if self._incarnation is None else self._incarnation
        rng = stream(self._run_seed, self._actor, Purpose.EPISODE_SEEDS, (lineage << 20) + self._draws)
        self._draws += 1
        return [int(s) for s in rng.integers(0, 2**31, count)]


class WaveSampler:
    """Samples waves of seed-training episodes. Each seed is played `episodes_per_seed` times in a wave."""

    rejected, fault = 0, ""

    def __init__(
        self,
        fleet: SeedTrainingFleet,
        seeds: EpisodeSeeds,
        episodes_per_seed: int = 1,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        self.fleet, self.seeds, self.spaces = fleet, seeds, fleet.spaces
        self._on_step, self._episodes_per_seed = on_step, episodes_per_seed

    def sample(self, policy: Policy, source: Provenance) -> list[Episode]:
        """Run one wave and return its episodes."""
        drawn = self.seeds.draw(self.fleet.num_envs // self._episodes_per_seed, source.generation)
        seeds = [seed for seed in drawn for _ in range(self._episodes_per_seed)]
        return run_wave(self.fleet, policy, seeds, source, on_step=self._on_step)

    def play(
        self, policy: Policy, source: Provenance, seeds: Sequence[int], deterministic: bool
    ) -> list[dict[str, Any]]:
        """Play one episode per seed, for evaluation. Returns timelines, see `actors.env.episode.timeline`."""
        timelines: list[dict[str, Any]] = []
        width = self.fleet.num_envs
        for start in range(0, len(seeds), width):
            part = list(seeds[start : start + width])
            wave = part + part[:1] * (width - len(part))  # a wave needs a seed for every environment
            run_wave(self.fleet, policy, wave, source, deterministic, self._on_step)
            timelines += [t.as_dict() for t in self.fleet.timelines()[: len(part)]]
        return timelines

    def close(self) -> None:
        """Do nothing: seed-training environments hold nothing that outlives them."""


class StreamSampler:
    """Samples from Gymnasium environments, whose episodes continue from one call to the next.

    `on_step` is called after each step of the fleet, and within one after each reset and step of a single environment.
    """

    def __init__(
        self,
        config: GymConfig,
        num_envs: int,
        run_seed: int,
        seeds: EpisodeSeeds,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        self.config, self.num_envs, self.run_seed, self._on_step = config, num_envs, run_seed, on_step
        self._generation = 0
        self._seed_of: SeedOf = lambda env: seeds.draw(1, self._generation)[0]
        env = make_vector_env(config, num_envs, on_step)
        self._fleet = GymFleet(config.id, env, self._seed_of, config.squash)
        self._stream: EpisodeStream | None = None
        self._rejected = 0  # by streams before this one
        self.spaces = self._fleet.spaces

    @property
    def rejected(self) -> int:
        """Episodes so far that held a number which cannot be trained on."""
        return self._rejected + (self._stream.rejected if self._stream is not None else 0)

    @property
    def fault(self) -> str:
        """What the last of them held."""
        return self._fleet.fault

    def sample(self, policy: Policy, source: Provenance) -> list[Episode]:
        """Step every environment `STREAM_STEPS` times and return the episodes that this completed, possibly none."""
        self._generation = source.generation
        if self._stream is None:
            self._fleet.seed_of = self._seed_of
            self._stream = EpisodeStream(
                self._fleet, policy, self.run_seed, self.config.max_segment_steps, self._on_step
            )
        episodes: list[Episode] = []
        for _ in range(STREAM_STEPS):
            episodes += self._stream.advance(policy, source)
        return episodes

    def play(
        self,
        policy: Policy,
        source: Provenance,
        seeds: Sequence[int],
        deterministic: bool,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[dict[str, Any]]:
        """Play one episode per seed, for evaluation. Each result has `seed`, `return` and further figures.

        They are played in the environments of `sample`, whose unfinished episodes are dropped: some simulators allow
        only one instance on a machine. An episode is cut after `MAX_PLAYED_STEPS`, at the end of a segment. Raises
        `TimeoutError` as soon as `stop()`."""
        self._rejected, self._stream = self.rejected, None
        played: dict[int, dict[str, Any]] = {}
        for start in range(0, len(seeds), self.num_envs):
            played |= self._play_round(policy, source, seeds[start : start + self.num_envs], deterministic, stop)
        return [dict(played[int(seed)]) for seed in seeds]

    def _play_round(
        self,
        policy: Policy,
        source: Provenance,
        seeds: Sequence[int],
        deterministic: bool,
        stop: Callable[[], bool],
    ) -> dict[int, dict[str, Any]]:
        """Play one episode in each environment and return those of `seeds`. All environments are reset at the start of
        a round: only then are seeded those that reset themselves, and only then can an episode be cut."""
        others = count(max(seeds) + 1)  # of environments without a seed, and after an episode's end
        drawn = chain(map(int, seeds), others)
        self._fleet.seed_of = lambda env: next(drawn)
        longest = min(self.config.max_segment_steps, MAX_PLAYED_STEPS)
        episodes = EpisodeStream(self._fleet, policy, self.run_seed, longest, self._on_step)
        waiting, played = set(seeds), dict[int, dict[str, Any]]()
        while waiting:
            if stop():
                raise TimeoutError(f"{len(waiting)} of {len(seeds)} episodes have not ended")
            for episode in episodes.advance(policy, source, deterministic):
                steps, ended = int(episode.telemetry["episode_steps"]), episode.end_reason is not EndReason.CUT
                if episode.seed in waiting and (ended or steps >= MAX_PLAYED_STEPS):
                    waiting.remove(episode.seed)
                    gained = episode.telemetry["episode_return"]
                    played[episode.seed] = {"seed": episode.seed, "return": gained, "steps": steps, "ended": ended}
            if episodes.rejected:
                raise UserError(f"{self._fleet.fault}, so that its episode cannot be compared: correct the environment")
        return played

    def close(self) -> None:
        """Close the environments, even if closing one fails."""
        self._fleet.close()


Sampler = WaveSampler | StreamSampler


def make_sampler(
    acting: ActingConfig, index: int, run_seed: int, incarnation: int | None, on_step: Callable[[], None] = lambda: None
) -> Sampler:
    """Build the sampler that the configuration selects.

    `incarnation` is None for the first actor of its name; `on_step` is called after each step of the environments.
    """
    seeds = EpisodeSeeds(run_seed, index, incarnation)
    width = acting.actors.envs_per_actor
    if acting.gym.id:
        return StreamSampler(acting.gym, width, run_seed, seeds, on_step)
    fleet = make_fleet(acting.env, width, run_seed, gpu=acting.actors.gpus_per_actor > 0)
    return WaveSampler(fleet, seeds, acting.episodes_per_seed, on_step)
