"""The configuration of a run: actors, learner, and where they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from actors.config import ActorsConfig, EnvConfig, GymConfig, PolicyConfig, QueueConfig, require, require_least
from actors.config.pool import REDIS_SCHEMES
from actors.serving.external import ExternalConfig
from actors.types.names import NAME_RULE, is_name
from learner.config import LearnerConfig


@dataclass(frozen=True)
class RunConfig:
    """A training run."""

    name: str = ""
    """Name of the run: letters, digits, '.', '_', '-'. For scripts and clusters; empty: the current time."""
    root: str = "runs"
    """Folder of all run folders. For another disk."""
    seed: int = 0
    """Random seed. For repetitions."""
    init_from: str = ""
    """Checkpoint or run folder with a new run's initial weights. To train a policy further; empty draws them."""
    redis: str = ""
    """URL of a Redis or Valkey server, for several machines. Empty starts one; TAMIYO_REDIS_PASSWORD sets the
    password."""
    actors_redis: str = ""
    """The same server as a less privileged user, redis://actor@HOST:6379/0; TAMIYO_ACTORS_REDIS_PASSWORD sets the
    password. For servers with a user per role; empty: run.redis."""
    address: str = ""
    """Ray cluster: auto, HOST:6379 or ray://HOST:10001. For several machines; empty starts Ray here."""
    ship: Literal["image", "code"] = "image"
    """What a run uploads to a cluster: nothing (`image`), or Tamiyo and your tasks' modules, if machines lack them."""
    service: bool = False
    """Resume this run, and stay up after the last update. For Compose and Kubernetes."""
    evaluate_every: int = 10
    """Updates between evaluations of a Gymnasium run, whose best policy is kept; 0 for none. They take a tenth of an
    actor's time at most. More where an episode takes minutes."""
    reference_episodes: int = 48
    """New episodes of the final comparison, 0 for none. More narrow the intervals."""
    append_only: bool = False
    """Append-only file: a crash of the embedded server loses two seconds at most. For long runs."""
    metrics_port: int = 0
    """Port of Prometheus metrics. For processes without Ray, which have none with 0; else 0 is Ray's choice."""
    metrics_host: str = "127.0.0.1"
    """Its address on a separate learner or actors, without authentication. For containers."""
    wandb: str | None = None
    """Weights & Biases project (extra `wandb`). To compare runs there."""
    dashboard: bool = False
    """Ray's dashboard, on loopback. To look into its processes."""

    def __post_init__(self) -> None:
        require(self.name == "" or is_name(self.name), f"run.name is {self.name!r}: use {NAME_RULE}")
        require(self.wandb != "", "run.wandb is empty: give a project name, or leave it out")
        require_least(self, "run", 0, "seed", "evaluate_every")
        require(
            not self.address.startswith("ray://") or Path(self.root).is_absolute(),
            f"run.root is {self.root!r}: with a ray:// address it must be the absolute path of a folder that all "
            "machines of the cluster share",
        )
        require(
            self.reference_episodes == 0 or self.reference_episodes >= 2,
            f"run.reference_episodes is {self.reference_episodes}: give 0 for no comparison, or at least 2, which an "
            "interval needs",
        )
        require(
            0 <= self.metrics_port < 65536, f"run.metrics_port is {self.metrics_port}: it must be between 0 and 65535"
        )
        for name in ("redis", "actors_redis"):
            url = getattr(self, name)
            require(
                url == "" or url.startswith(REDIS_SCHEMES),
                f"run.{name} is {url!r}: use redis://host:port/0, rediss://... or unix:///path",
            )
        require(
            not self.actors_redis or bool(self.redis),
            "run.actors_redis needs run.redis: it is the same server with another user",
        )


@dataclass(frozen=True)
class ImitationConfig:
    """Pretraining: before PPO, a new policy imitates a teacher, which lets columns learn where regressions expect that
    to pay, and gives each up once they do not."""

    episodes: int = 0
    """Demonstrations of the teacher. For several families of tasks; 0 without `files`, or `run.init_from`, disables
    pretraining."""
    hosts: int = 504
    """Hosts that its regressions are fitted to. More for many tasks."""
    files: tuple[str, ...] = ()
    """Files or folders of whole episodes in the run's spaces, imitated beside the teacher's, or alone. For episodes
    of another run, or a teacher of your own."""

    @property
    def enabled(self) -> bool:
        """Whether a new policy is pretrained."""
        return self.episodes > 0 or bool(self.files)

    def __post_init__(self) -> None:
        require_least(self, "imitation", 0, "episodes")
        require(self.hosts >= 2, f"imitation.hosts is {self.hosts}: a regression needs at least 2")


_PLAIN = ActorsConfig(), QueueConfig(), LearnerConfig()
_GENERAL = (
    ActorsConfig(count=2, envs_per_actor=4),
    QueueConfig(max_episodes=4),  # fewer environments and less waiting keep segments fresh
    LearnerConfig(
        batch_episodes=4,
        batch_steps=1024,
        update_epochs=10,
        minibatches=4,
        gamma=0.99,  # episodes may never end: a value covers about 100 steps
        gae_lambda=0.95,
        entropy_start=0.01,
        entropy_end=0.01,
        chunk_length=64,
        burn_in=128,
        max_policy_lag=8,  # a segment is up to 4 updates old when complete, and may wait for 4 more
    ),
)


@dataclass(frozen=True)
class Config:
    """All settings of a run. YAML files and flags name a field by its section: `learner.lr`, `--learner.lr`. In a
    Gymnasium or external environment, `learner`, if left out, is that of preset `general`, and with it `actors` and
    `queue`."""

    run: RunConfig = field(default_factory=RunConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    gym: GymConfig = field(default_factory=GymConfig)
    external: ExternalConfig = field(default_factory=ExternalConfig)
    imitation: ImitationConfig = field(default_factory=ImitationConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    actors: ActorsConfig = _PLAIN[0]
    queue: QueueConfig = _PLAIN[1]
    learner: LearnerConfig = _PLAIN[2]

    def __post_init__(self) -> None:
        if self.learner is _PLAIN[2] and not self.on_seed_hosts:  # left out, not given with the same values
            for name, plain, general in zip(("actors", "queue", "learner"), _PLAIN, _GENERAL, strict=True):
                object.__setattr__(self, name, general if getattr(self, name) is plain else getattr(self, name))
        for section, settings in vars(self).items():
            for name, value in vars(settings).items():
                for number in value if isinstance(value, tuple) else (value,):
                    fits = not isinstance(number, int | float) or abs(number) < 2**63  # so that none is infinite
                    require(fits, f"{section}.{name} is {number}: give a number below 2^63")
        running = 0 if self.external.spaces else self.actors.at_least * self.actors.envs_per_actor
        allowed = self._fresh_episodes
        require(
            running <= allowed,
            f"{self.actors.at_least} actors x {self.actors.envs_per_actor} environments run {running} episodes at "
            f"once, but only {allowed} = (max_policy_lag + 1) x the episodes of a batch can be recent enough to train "
            "on: run fewer environments, or raise learner.batch_episodes, learner.batch_steps or "
            "learner.max_policy_lag",
        )
        require(
            self.queue.max_episodes >= self.learner.batch_episodes,
            f"queue.max_episodes is {self.queue.max_episodes}: it must be at least learner.batch_episodes, "
            f"{self.learner.batch_episodes}",
        )
        oldest = running * self.gym.max_segment_steps
        require(
            not self.gym.id or oldest <= self._fresh_steps,
            f"while one environment fills a segment of gym.max_segment_steps {self.gym.max_segment_steps}, {running} "
            f"of them take up to {oldest} steps, more than the {self._fresh_steps} that max_policy_lag updates train "
            "on: the segment would be too old. Raise learner.batch_steps or learner.max_policy_lag, or lower "
            "gym.max_segment_steps",
        )
        require(
            not self.external.spaces or not (self.gym.id or self.run.address),
            "external.spaces selects environments outside of the run, without gym.id and run.address: leave those out, "
            "or use `tamiyo learner` and `tamiyo actors` instead of a Ray cluster",
        )
        require(
            self.on_seed_hosts or not self.imitation.episodes,
            f"imitation.episodes is {self.imitation.episodes}, but pretraining needs seed hosts, and the environment "
            f"is {self.gym.id or self.external.spaces!r}: set imitation.episodes to 0",
        )
        require(
            not self.imitation.episodes or self.env.time_limit == "terminated",
            f"imitation.episodes is {self.imitation.episodes} with env.time_limit truncated: demonstrations end at the "
            "horizon and have no critic to bootstrap from, so their value targets would treat it as terminal; set "
            "imitation.episodes to 0, or env.time_limit to terminated",
        )
        require(
            not self.learner.keeps_prior or self.imitation.enabled or bool(self.run.init_from),
            "learner.prior_coef needs an initial policy: set imitation.episodes, imitation.files or run.init_from",
        )
        require(
            not self.learner.keeps_prior or self.on_seed_hosts,
            "learner.prior_coef needs whole episodes, but only seed hosts have them: set learner.prior_coef to 0",
        )
        times = self.learner.episodes_per_seed
        require(
            self.actors.envs_per_actor % times == 0,
            f"learner.episodes_per_seed is {times}: it must divide actors.envs_per_actor, {self.actors.envs_per_actor}",
        )
        require(
            times == 1 or self.on_seed_hosts,
            f"learner.episodes_per_seed is {times}, but only seed hosts are played more than once: set it to 1, or "
            "leave gym.id and external.spaces out",
        )
        gamma = self.learner.gamma
        require(
            self.env.reward != "contribution" or self.env.shaping_gamma == gamma,
            f"env.reward is contribution with env.shaping_gamma {self.env.shaping_gamma}, but learner.gamma is "
            f"{gamma}: shaping preserves the optimal policy only with the same discount; set both to one value",
        )
        require(
            self.env.time_limit == "terminated" or gamma < 1,
            "env.time_limit is truncated with learner.gamma 1: the undiscounted value of an endless task is unbounded; "
            "set learner.gamma below 1 (0.995 is common), or env.time_limit to terminated",
        )

    @property
    def in_force(self) -> Config:
        """The same settings, with the learning rate and the number of passes that null stands for."""
        return replace(self, learner=self.learner.for_core(self.policy.is_recurrent))

    @property
    def on_seed_hosts(self) -> bool:
        """Whether the environment is the seed-training environment."""
        return not (self.gym.id or self.external.spaces)

    @property
    def most_actors(self) -> int:
        """Upper bound of `actors.count: auto`: more actors would produce episodes too old to train on."""
        running = self._fresh_episodes
        if self.gym.id:
            running = min(running, self._fresh_steps // self.gym.max_segment_steps)
        return min(self.actors.max_count, running // self.actors.envs_per_actor)

    @property
    def _fresh_episodes(self) -> int:
        """Fewest episodes, or segments, that are recent enough to train on at once."""
        longest = self.env.max_horizon_epochs if self.on_seed_hosts else self.gym.max_segment_steps
        batch = max(self.learner.batch_episodes, self.learner.batch_steps // longest)
        return (self.learner.max_policy_lag + 1) * batch

    @property
    def _fresh_steps(self) -> int:
        return self.learner.max_policy_lag * max(self.learner.batch_steps, self.learner.batch_episodes)


RESEARCH_TASKS = (
    "digits", "breast_cancer", "spirals", "spirals_noisy", "moons", "rings", "clusters", "clusters_noisy",
    "classification", "classification_noisy", "linear", "teacher_narrow", "teacher_wide", "teacher_deep",
    "signals_flat", "cells_two", "cells_many", "cells_hidden", "cells_colors", "ripples", "quadrics", "rules",
    "clusters_many", "teacher_classes", "mixture", "phrases",
)  # fmt: skip
"""Training families with an MLP and at least 200 training rows. On a CPU, convolutions take fifty times as long."""

_QUICK = Config(
    run=RunConfig(reference_episodes=96),
    # The twin removes the variance of data and initialization from the reward, so that a few dozen updates suffice.
    env=EnvConfig(reference="twin", points_per_doubling=1.0, points_per_compute_doubling=0.0),
    actors=ActorsConfig(count=2, envs_per_actor=16),
    learner=LearnerConfig(
        max_seconds=90.0,  # on two cores; 165 s end no higher
        batch_episodes=32,
        update_epochs=4,
        minibatches=4,
        lr=1e-3,
        # A few dozen updates cannot afford much exploration: low entropy bonus, large KL target.
        entropy_start=0.02,
        entropy_end=0.005,
        entropy_anneal_updates=50,
        target_kl=0.06,
    ),
)

_RESEARCH = replace(
    _QUICK,
    env=replace(
        _QUICK.env,
        tasks=RESEARCH_TASKS,
        points_per_doubling=(0.25, 8.0),
        points_per_compute_doubling=(1 / 32, 1.0),
        horizon_epochs=(15, 40),
        inner_steps=(8, 32),
        host_lr=(1e-3, 1e-2),
        lr_decay=0.75,
        drop_features=0.1,
    ),
    # After pretraining, every nat of KL to the pretrained policy costs a point. With a decaying price, PPO lost in some
    # policies what pretraining had gained on held-out families.
    imitation=ImitationConfig(episodes=6048, hosts=2016),
    actors=ActorsConfig(count=2, envs_per_actor=32),
    learner=replace(
        _QUICK.learner,
        updates=60,
        max_seconds=20 * 60.0,
        batch_episodes=64,
        # Noise exceeds the differences between families: larger steps, or a bonus for entropy, undo what was imitated.
        lr=5e-5,
        target_kl=0.02,
        entropy_start=0.0,
        entropy_end=0.0,
        prior_coef=1.0,
        # The mean of the others contains how easy the host is, which the critic cannot see.
        episodes_per_seed=4,
    ),
)

PRESETS: dict[str, Config] = {
    "tamiyo": Config(env=EnvConfig(drop_features=0.1), learner=LearnerConfig()),
    "quick": _QUICK,
    "research": _RESEARCH,
    "general": Config(actors=_GENERAL[0], queue=_GENERAL[1], learner=_GENERAL[2]),
}
"""`tamiyo` holds the reference settings; `quick` is used by `make train` on two cores; `research` trains the study's
policies; `general` is for Gymnasium and external environments."""


def default_preset(settings: object, env: str | None = None) -> str:
    """Return the preset of settings that choose none: `general` if they or `env` name a Gymnasium or external
    environment, otherwise `tamiyo`. `settings` are the content of a YAML file, checked or not."""

    def given(section: str, key: str) -> bool:
        values = settings.get(section) if isinstance(settings, Mapping) else None
        return isinstance(values, Mapping) and bool(values.get(key))

    return "general" if env or given("gym", "id") or given("external", "spaces") else "tamiyo"


def closest_preset(config: Config) -> str:
    """Return the name of the preset that a configuration differs from in the fewest settings."""
    settings = settings_in_force(config).items()
    return max(PRESETS, key=lambda name: len(settings & settings_in_force(PRESETS[name]).items()))


def settings_in_force(config: Config) -> dict[str, Any]:
    """Return all settings in force by their names, such as `learner.lr`."""
    sections = vars(config.in_force).items()
    return {f"{section}.{name}": value for section, values in sections for name, value in vars(values).items()}
