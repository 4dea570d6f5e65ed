"""The configuration of a whole run: acting, learning and where it all lives."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from actors.config import ActorsConfig, EnvConfig, GymConfig, PolicyConfig, QueueConfig, require
from actors.types.names import NAME_RULE, is_name
from learner.config import LearnerConfig


@dataclass(frozen=True)
class RunConfig:
    """A training run."""

    name: str = ""
    """Name of the run: letters, digits, '.', '_' and '-'; empty makes one from the time."""
    root: str = "runs"
    """Folder that holds runs."""
    seed: int = 0
    """Seed of the whole run."""
    init_from: str = ""
    """Checkpoint, or run folder, whose weights a new run starts from with a fresh optimizer; empty draws them."""
    redis: str = ""
    """URL of a Redis or Valkey server; empty starts an embedded one. TAMIYO_REDIS_PASSWORD gives the password."""
    actors_redis: str = ""
    """URL of that server for the actors of `tamiyo train`, such as redis://actor@HOST:6379/0, so that they log in as a
    user with fewer rights; empty is run.redis. TAMIYO_ACTORS_REDIS_PASSWORD gives the password."""
    address: str = ""
    """Ray cluster to run on: auto, HOST:6379 or ray://HOST:10001; empty starts a Ray of its own on this machine."""
    ship: Literal["image", "code", "pins"] = "image"
    """What a run on a cluster brings along: nothing, its machines have it all; our code and the modules of your own
    tasks; or the installed versions of all packages as well, which each machine fetches once."""
    service: bool = False
    """For `tamiyo learner` where something starts it again: go on with a run of this name where there is one, and stay
    when it is done, so that its metrics can be read, until told to stop."""
    reference_episodes: int = 48
    """Episodes of the last fifth whose seeds are played again by the random policy and, on seed hosts, never-grow."""
    append_only: bool = False
    """Let the embedded server keep its data in a file as well, so that a restart of it loses no episode."""
    metrics_port: int = 0
    """Port where Prometheus reads metrics: Ray's on loopback, or that of a learner or actors on their own; 0 lets Ray
    choose, and shows none of the others."""
    metrics_host: str = "127.0.0.1"
    """Address of that port for a learner or actors on their own; what is shown there asks for no password."""
    wandb: str | None = None
    """Project of Weights & Biases that metrics go to as well (extra `wandb`)."""
    dashboard: bool = False
    """Start the Ray dashboard, on loopback."""

    def __post_init__(self) -> None:
        require(self.name == "" or is_name(self.name), f"run.name is {self.name!r}: give {NAME_RULE}")
        require(self.wandb != "", "run.wandb is empty: name a project, or leave it out")
        require(self.seed >= 0, f"run.seed is {self.seed}: it cannot be negative")
        require(
            not self.address.startswith("ray://") or Path(self.root).is_absolute(),
            f"run.root is {self.root!r}, but ray:// reaches a cluster from elsewhere: give the absolute path of a "
            "folder that all its machines see",
        )
        require(self.reference_episodes >= 2, "run.reference_episodes must be at least 2, an interval needs them")
        require(0 <= self.metrics_port < 65536, f"run.metrics_port is {self.metrics_port}: give a port, or 0")
        for name in ("redis", "actors_redis"):
            url = getattr(self, name)
            require(
                url == "" or url.startswith(("redis://", "rediss://", "unix://")),
                f"run.{name} is {url!r}: give redis://host:port/0, rediss://... or unix:///path",
            )
        require(
            not self.actors_redis or bool(self.redis),
            "run.actors_redis needs run.redis: it is the same server, with a user for the actors",
        )


@dataclass(frozen=True)
class ImitationConfig:
    """What a new run's policy imitates before PPO begins: to grow by the tuned schedule, or not at all, as serves a
    host best."""

    episodes: int = 0
    """Demonstrations; 0 begins with random weights, and a run with `run.init_from` with its own."""
    temperature: float = 1.0
    """Points: the odds of growing in a demonstration are exp(what growing is expected to gain / temperature)."""
    odds: Literal["linear", "task"] = "linear"
    """What that is expected from: `linear`, a linear function of what the first epochs of a host showed, one for all
    tasks; or `task`, the mean gain of each task, which policies learn by heart and carry badly to other tasks."""
    passes: int = 15
    """Passes over them."""
    schedules: str = ""
    """File that `tamiyo evaluate --tune` wrote; empty takes the one that comes with the package."""

    def __post_init__(self) -> None:
        require(self.episodes >= 0, f"imitation.episodes is {self.episodes}: it cannot be negative; 0 is none")
        require(self.temperature > 0, f"imitation.temperature is {self.temperature}: it must be above 0")
        require(self.passes >= 1, f"imitation.passes is {self.passes}: it must be at least 1")


@dataclass(frozen=True)
class Config:
    """All of it. YAML files and flags name the fields by section: `learner.lr`, `--learner.lr`."""

    run: RunConfig = field(default_factory=RunConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    gym: GymConfig = field(default_factory=GymConfig)
    imitation: ImitationConfig = field(default_factory=ImitationConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    actors: ActorsConfig = field(default_factory=ActorsConfig)
    queue: QueueConfig = field(default_factory=QueueConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)

    def __post_init__(self) -> None:
        running = self.actors.at_least * self.actors.envs_per_actor
        allowed = self._fresh_episodes
        require(
            running <= allowed,
            f"{self.actors.at_least} actors x {self.actors.envs_per_actor} environments run {running} episodes at "
            f"once, but only {allowed} = (max_policy_lag + 1) x batch_episodes can be fresh enough to train on: "
            "run fewer environments, or raise learner.batch_episodes or learner.max_policy_lag",
        )
        require(
            self.queue.max_episodes >= self.learner.batch_episodes,
            f"queue.max_episodes is {self.queue.max_episodes}: it must hold a batch of {self.learner.batch_episodes}",
        )
        oldest = running * self.gym.max_segment_steps
        require(
            not self.gym.id or oldest <= self._fresh_steps,
            f"while one environment fills a segment of gym.max_segment_steps {self.gym.max_segment_steps}, {running} "
            f"of them make up to {oldest} steps, more than the {self._fresh_steps} that max_policy_lag updates train "
            "on: the segment would be too old. Raise learner.batch_steps or learner.max_policy_lag, or shorten "
            "segments",
        )
        require(
            not self.gym.id or not self.imitation.episodes,
            f"imitation.episodes is {self.imitation.episodes}, but schedules grow seed hosts, and gym.id is "
            f"{self.gym.id!r}: set it to 0",
        )
        require(
            not self.imitation.episodes or self.env.time_limit == "terminated",
            f"imitation.episodes is {self.imitation.episodes} with env.time_limit truncated: demonstrations end at the "
            "horizon and have no critic to tell what would come after it, so that the value learnt from them would be "
            "that of an end; set imitation.episodes to 0, or keep env.time_limit terminated",
        )
        require(
            not self.learner.keeps_prior or bool(self.imitation.episodes or self.run.init_from),
            "learner.prior_start needs a policy to begin with: set imitation.episodes, or run.init_from",
        )
        require(
            not self.learner.keeps_prior or not self.gym.id,
            "learner.prior_start is for seed hosts, whose episodes arrive whole: a prior cannot look into a segment",
        )
        gamma = self.learner.gamma
        require(
            self.env.reward != "contribution" or self.env.shaping_gamma == gamma,
            f"env.reward is contribution with env.shaping_gamma {self.env.shaping_gamma}, but learner.gamma is "
            f"{gamma}: shaping leaves the best policy unchanged only under the same discount; set both alike",
        )
        require(
            self.env.time_limit == "terminated" or gamma < 1,
            "env.time_limit is truncated with learner.gamma 1: without an end the undiscounted value is unbounded; "
            "set learner.gamma below 1 (0.995 is common), or keep 'terminated'",
        )

    @property
    def most_actors(self) -> int:
        """With `actors.count: auto`: as many as run no more episodes at once than can be fresh enough to train on."""
        running = self._fresh_episodes
        if self.gym.id:
            running = min(running, self._fresh_steps // self.gym.max_segment_steps)
        return min(self.actors.max_count, running // self.actors.envs_per_actor)

    @property
    def _fresh_episodes(self) -> int:
        return (self.learner.max_policy_lag + 1) * self.learner.batch_episodes

    @property
    def _fresh_steps(self) -> int:
        return self.learner.max_policy_lag * max(self.learner.batch_steps, self.learner.batch_episodes)


RESEARCH_TASKS = (
    "digits", "breast_cancer", "spirals", "spirals_noisy", "moons", "rings", "clusters", "clusters_noisy",
    "classification", "classification_noisy", "linear", "teacher_narrow", "teacher_wide", "teacher_deep",
    "signals_flat", "cells_two", "cells_many", "cells_hidden", "ripples", "quadrics", "rules",
)  # fmt: skip
"""Training families with an MLP and at least 200 training rows: on a CPU convolutions take fifty times as long."""

_QUICK = Config(
    run=RunConfig(reference_episodes=96),
    # The twin takes the luck of data and start out of what is paid: a few dozen updates then tell good from bad. The
    # rent rises since growing costs more than it brings until one knows how: else all that is learnt is to WAIT.
    env=EnvConfig(reference="twin", rent_warmup_updates=25),
    actors=ActorsConfig(count=2, envs_per_actor=16),
    learner=LearnerConfig(
        max_seconds=165.0,
        batch_episodes=32,
        update_epochs=4,
        minibatches=4,
        lr=1e-3,
        # A few dozen updates cannot pay for much exploration: little entropy, and room to move.
        entropy_start=0.02,
        entropy_end=0.005,
        entropy_anneal_updates=50,
        target_kl=0.06,
    ),
)

_RESEARCH = replace(
    _QUICK,
    env=replace(_QUICK.env, tasks=RESEARCH_TASKS, rent_warmup_updates=0),
    # It begins with what serves hosts that look alike, and pays three points a nat for straying from that: where
    # it cost less and less, PPO unlearnt in some policies what the lesson gained on families they had never seen.
    imitation=ImitationConfig(episodes=1008),
    actors=ActorsConfig(count=2, envs_per_actor=32),
    learner=replace(
        _QUICK.learner,
        updates=100,
        max_seconds=20 * 60.0,
        batch_episodes=64,
        # Families differ in noise more than in what growing brings: small steps, which many episodes add up to.
        lr=1.5e-4,
        target_kl=0.02,
        entropy_start=0.003,
        entropy_end=0.002,
        entropy_anneal_updates=100,
        prior_start=3.0,
        prior_end=3.0,
    ),
)

PRESETS: dict[str, Config] = {
    "tamiyo": Config(env=EnvConfig(drop_features=0.1)),
    "quick": _QUICK,
    "research": _RESEARCH,
    "general": Config(
        actors=ActorsConfig(count=2, envs_per_actor=8),
        queue=QueueConfig(max_episodes=16),  # what waits grows old: four batches of full segments
        learner=LearnerConfig(
            batch_episodes=8,
            batch_steps=4096,
            update_epochs=4,
            minibatches=4,
            gamma=0.99,
            gae_lambda=0.95,
            entropy_anneal_updates=0,
            entropy_coef=0.01,
            chunk_length=64,
            burn_in=64,
            max_policy_lag=8,  # a segment is up to four updates old when it is complete, and may wait for four more
        ),
    ),
}
"""`tamiyo` holds the reference settings; `quick` is what `make train` uses on two cores; `research` is what the study
trains with; `general` is for Gymnasium."""
