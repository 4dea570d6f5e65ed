"""Configuration of the acting side: frozen, validated when built, the reason in the message."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import Literal

from actors.errors import UserError


class ConfigError(UserError, ValueError):
    """A setting that cannot work; the message says which, why, and what to do."""


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


@dataclass(frozen=True)
class EnvConfig:
    """The seed-training environment: one host, its slots, its data and its rules."""

    tasks: tuple[str, ...] = ("digits", "wine", "spirals")
    """Training tasks, as `tamiyo tasks` lists them, or mypkg:factory; one is drawn per episode, by its seed."""
    data_dir: str | None = None
    """Folder of data sets that are not bundled, such as CIFAR-10."""
    download: bool = False
    """Fetch such a data set into data_dir where it is absent."""
    slots: int = 3
    """Slots per host, 1 to 8."""
    horizon_epochs: int = 25
    """Host epochs per episode; one decision each."""
    inner_steps: int = 16
    """Minibatches per host epoch."""
    batch_size: int = 64
    """Samples per minibatch."""
    host_lr: float = 5e-3
    """AdamW learning rate of the host."""
    seed_lr: float = 5e-3
    """AdamW learning rate of the seeds."""
    weight_decay: float = 1e-4
    """Decoupled weight decay of hosts and seeds."""
    clip_norm: float = 1.0
    """Gradient-norm clip, per environment and per group (host, each seed)."""
    rent_weight: float = 5.0
    """Points of accuracy that holding one host's worth of extra parameters for the whole episode costs."""
    rent_warmup_updates: int = 0
    """Updates over which the rent in rewards rises from nothing to `rent_weight`, so that what growing is good for is
    learnt before what it costs. J has the whole rent always. A new run starts at nothing, also with `run.init_from`."""
    budget_ratio: float = 4.0
    """Parameter budget for growth, in multiples of the host's own parameters."""
    gates: Literal["permissive", "strict"] = "permissive"
    """How much evidence ADVANCE and FOSSILIZE need."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where hosts train; auto is CUDA where present."""
    backend: Literal["auto", "numba", "torch"] = "auto"
    """How a fleet trains its hosts: `numba` runs compiled CPU kernels, one host after the other; `torch` trains all
    hosts together as stacked tensors. `auto` uses numba for MLP hosts on a CPU and torch otherwise."""
    compile: bool = False
    """Fuse pieces of the tensor program by torch.compile; a minute at the first use, and worth it on CUDA only."""
    cuda_graph: bool = False
    """Replay an epoch's minibatches as a CUDA graph."""
    isolation: Literal["shadow", "straight_through"] = "shadow"
    """How a seed in TRAINING learns without touching its host."""
    embargo_epochs: int = 2
    """Epochs a pruned slot rests before it can be used again."""
    contribution_every: int = 1
    """Epochs between measurements of the seeds' contributions."""
    profile: Literal["tamiyo", "classic"] = "tamiyo"
    """What is decided: six heads and six ops, or (`classic`) four of each, with automatic advance."""
    reward: Literal["objective", "sparse", "contribution"] = "objective"
    """J step by step, J at the end alone, or J step by step shaped by the seeds' contributions."""
    shaping_gamma: float = 1.0
    """Discount of `reward: contribution`; must be the learner's, or the shaping would change what is best."""
    reference: Literal["untrained", "twin"] = "untrained"
    """What accuracy is measured against: the untrained host, or a twin that never grows as well."""
    twin_coef: float | None = None
    """Share of the twin's accuracy change that is subtracted; null takes each task's fitted one."""
    time_limit: Literal["terminated", "truncated"] = "terminated"
    """What the end at the horizon is; `truncated` (bootstrapped) needs a horizon that cannot be seen."""
    drop_features: float = 0.0
    """Probability that a group of features (contributions, accuracy) reads unknown for a whole episode, so that the
    policy knows how to grow models whose owners cannot measure them."""
    observe_time: bool = True
    """Whether the policy sees how much of the horizon has passed."""
    random_horizon: bool = False
    """Draw each episode's horizon from half of `horizon_epochs` to all of it, and hide it."""

    def __post_init__(self) -> None:
        require(len(self.tasks) > 0, "env.tasks is empty: name at least one task")
        require(
            not self.download or self.data_dir is not None, "env.download needs env.data_dir: the folder to fetch into"
        )
        require(1 <= self.slots <= 8, f"env.slots is {self.slots}: a host has 1 to 8 slots")
        require(
            self.horizon_epochs >= 1, f"env.horizon_epochs is {self.horizon_epochs}: an episode has at least one epoch"
        )
        require(self.inner_steps >= 1, f"env.inner_steps is {self.inner_steps}: an epoch has at least one minibatch")
        require(self.batch_size >= 2, f"env.batch_size is {self.batch_size}: a minibatch has at least two samples")
        require(self.host_lr > 0 and self.seed_lr > 0, "env.host_lr and env.seed_lr must be positive")
        require(self.weight_decay >= 0, f"env.weight_decay is {self.weight_decay}: it cannot be negative")
        require(self.clip_norm > 0, f"env.clip_norm is {self.clip_norm}: it must be positive")
        require(self.rent_weight >= 0, f"env.rent_weight is {self.rent_weight}: growth cannot be paid for existing")
        require(self.rent_warmup_updates >= 0, "env.rent_warmup_updates cannot be negative; 0 is no warm-up")
        require(self.budget_ratio > 0, f"env.budget_ratio is {self.budget_ratio}: with no budget nothing can grow")
        require(self.embargo_epochs >= 1, f"env.embargo_epochs is {self.embargo_epochs}: it must be at least 1")
        require(
            self.contribution_every >= 1, f"env.contribution_every is {self.contribution_every}: it must be at least 1"
        )
        require(
            0 <= self.drop_features < 1,
            f"env.drop_features is {self.drop_features}: give a probability from 0 to below 1",
        )
        require(
            not self.cuda_graph or self.device != "cpu",
            "env.cuda_graph needs a CUDA device, but env.device is cpu: leave one of them out",
        )
        self._check_reward()

    def _check_reward(self) -> None:
        require(
            0 < self.shaping_gamma <= 1, f"env.shaping_gamma is {self.shaping_gamma}: give the learner's, in (0, 1]"
        )
        require(
            self.twin_coef is None or (isfinite(self.twin_coef) and self.twin_coef >= 0),
            f"env.twin_coef is {self.twin_coef}: give a share of at least 0, or null for each task's fitted one",
        )
        require(
            self.twin_coef is None or self.reference == "twin",
            f"env.twin_coef is {self.twin_coef}, but env.reference is 'untrained', so that there is no twin: "
            "set env.reference to twin, or leave the coefficient out",
        )
        if self.time_limit == "truncated":
            require(
                self.random_horizon or not self.observe_time,
                "env.time_limit is truncated while the horizon can be seen: J has no value after it, and a critic "
                "that bootstraps there chases itself. Keep 'terminated', or hide the horizon by "
                "env.observe_time false or env.random_horizon true",
            )
            require(
                self.reward != "sparse",
                "env.reward is sparse while env.time_limit is truncated: J is paid at an end, and a truncated episode "
                "has none. Keep 'terminated', or take env.reward objective",
            )


@dataclass(frozen=True)
class GymConfig:
    """A Gymnasium environment to train on instead of seed hosts; off while `id` is empty."""

    id: str = ""
    """Its registered id, such as CartPole-v1, or mypkg:MyEnv-v0 to import mypkg first; empty trains seed hosts."""
    kwargs: tuple[str, ...] = ()
    """Arguments of `gymnasium.make` as name=value; the value is read as JSON where it is JSON, else as text."""
    wrappers: tuple[str, ...] = ()
    """Wrappers around each environment, innermost first, as module:Class; not for vectorization own."""
    vectorization: Literal["sync", "async", "own"] = "sync"
    """Environments in one process, a process each, or as the environment's own vector entry point does it."""
    max_segment_steps: int = 1024
    """Steps after which an episode that has not ended ships as a segment, bootstrapped; the next one carries on."""

    def __post_init__(self) -> None:
        for pair in self.kwargs:
            require("=" in pair, f"gym.kwargs holds {pair!r}: write name=value")
        for wrapper in self.wrappers:
            require(":" in wrapper, f"gym.wrappers holds {wrapper!r}: write module:Class")
        require(
            not self.wrappers or self.vectorization != "own",
            "gym.wrappers are put around single environments, and gym.vectorization own has none: use sync or async",
        )
        require(
            self.max_segment_steps >= 1, f"gym.max_segment_steps is {self.max_segment_steps}: it must be at least 1"
        )


MAX_WIDTH, MAX_LAYERS = 1 << 16, 64  # what a file may ask for before anything is built of it
MAX_FLOOR_MASS = 0.5
"""What all floors of a head take together at most; the bound of weights that do not state one."""


@dataclass(frozen=True)
class PolicyConfig:
    """The factored recurrent actor-critic; its architecture travels with the weights."""

    core: Literal["lstm", "feedforward", "lstm+memory"] = "lstm"
    """What carries the past: an LSTM, nothing (the baseline), or an LSTM with an external memory behind it."""
    hidden_size: int = 128
    """Width of the core."""
    num_layers: int = 1
    """Layers of the core."""
    memory_cells: int = 16
    """Cells of the external memory of `core: lstm+memory`."""
    memory_size: int = 32
    """Width of a cell."""
    encoder: Literal["slots", "flat"] = "slots"
    """One encoder shared by all slots, or everything concatenated; an observation without slots is always flat."""
    encoder_size: int = 128
    """Width of the base encoder and of the shared slot encoder."""
    head_size: int = 64
    """Hidden width of the heads."""
    blueprint_embedding: int = 8
    """Size of the learned blueprint embedding."""
    choice_embedding: int = 16
    """Size of the embedding through which later heads see the earlier choices."""
    heads: Literal["conditioned", "independent"] = "conditioned"
    """Whether later heads see the earlier choices; those of an action space without op and slot never do."""
    critic: Literal["v", "q_op"] = "v"
    """V(s), or Q(s, op): a value per op, so that the op head has a baseline of its own."""
    bootstrap: Literal["expected", "sampled"] = "expected"
    """With `critic: q_op`, the value after a truncated episode: expected over legal ops, or of an op that is drawn."""
    popart: bool = True
    """Normalise value targets and rescale the value output in place (PopArt)."""
    causal_masks: bool = True
    """Leave heads that the chosen op makes irrelevant out of everything; off, they are drawn among all their choices
    and learn from every step: an ablation."""
    blind: bool = False
    """Hide the observation, so that only the masks and the count of steps are left: what a fixed schedule knows."""
    probability_floor: float = 0.002
    """Least probability of each legal choice in every head, as far as `floor_mass` allows."""
    floor_mass: float | Literal["auto"] = "auto"
    """Most probability that the floors of one head take together: with n legal choices each floor is at most
    floor_mass / n. Auto is 0.01 for a Gymnasium environment, and 0.5 on seed hosts, whose heads are small."""
    compile: bool = False
    """Compile `act` and `evaluate` (torch.compile); the first calls take tens of seconds. What PyTorch would have to
    compile too often runs eagerly, with one warning."""

    def __post_init__(self) -> None:
        for name in (
            "hidden_size",
            "num_layers",
            "memory_cells",
            "memory_size",
            "encoder_size",
            "head_size",
            "blueprint_embedding",
            "choice_embedding",
        ):
            most = MAX_LAYERS if name == "num_layers" else MAX_WIDTH
            require(1 <= getattr(self, name) <= most, f"policy.{name} is {getattr(self, name)}: give 1 to {most}")
        require(
            0 <= self.probability_floor <= 0.05, f"policy.probability_floor is {self.probability_floor}: give 0 to 0.05"
        )
        require(
            self.floor_mass == "auto" or 0 < self.floor_mass <= MAX_FLOOR_MASS,
            f"policy.floor_mass is {self.floor_mass}: give auto, or more than 0 and at most {MAX_FLOOR_MASS}",
        )


@dataclass(frozen=True)
class ActorsConfig:
    """The fleet of actors."""

    count: int | Literal["auto"] = 2
    """Actor processes. A number is asked for, and an autoscaling cluster grows for it; auto takes what there is: one
    actor on every free CPU, more when machines join, fewer when they leave."""
    max_count: int = 64
    """With `count: auto`, actors at most; fewer where more could not be fresh enough to train on."""
    envs_per_actor: int = 8
    """Environments each actor steps together; one wave is one episode of each."""
    buffer_episodes: int = 64
    """Unsent episodes an actor keeps while the queue is busy; beyond it the oldest is dropped and counted."""
    fetch_timeout_s: float = 60.0
    """How long an actor waits for the first weights before it says so."""
    gpus_per_actor: float = 0.0
    """Share of a GPU that each actor claims, so that several fleets live on one; 0 claims none."""
    hang_s: float = 300.0
    """An actor at work that for so long neither takes a step nor tries to reach the server is killed and started
    again. One attempt to reach a server that swallows everything lasts up to 190 s."""

    def __post_init__(self) -> None:
        require(self.at_least >= 1, f"actors.count is {self.count}: at least one actor is needed")
        require(self.max_count >= 1, f"actors.max_count is {self.max_count}: at least one actor is needed")
        require(self.envs_per_actor >= 1, f"actors.envs_per_actor is {self.envs_per_actor}: it must be at least 1")
        require(
            self.buffer_episodes >= self.envs_per_actor,
            f"actors.buffer_episodes is {self.buffer_episodes}: it must hold one wave ({self.envs_per_actor} episodes)",
        )
        require(self.fetch_timeout_s > 0, "actors.fetch_timeout_s must be positive")
        require(self.hang_s > 0, f"actors.hang_s is {self.hang_s}: it must be positive")
        require(
            0 <= self.gpus_per_actor < 1,
            f"actors.gpus_per_actor is {self.gpus_per_actor}: give a share of one GPU, from 0 to below 1",
        )

    @property
    def at_least(self) -> int:
        """Actors that there are from the start."""
        return self.count if isinstance(self.count, int) else 1


LARGEST_PAYLOAD = 512 * 1024 * 1024  # what Redis takes as one value, unless it is told otherwise


@dataclass(frozen=True)
class QueueConfig:
    """Bounds of the episode queue and of the weight store."""

    max_episodes: int = 256
    """Episodes that may wait in the queue before actors are told BUSY."""
    max_bytes: int = 256 * 1024 * 1024
    """Bytes that may wait in the queue before actors are told BUSY."""
    max_episode_bytes: int = 16 * 1024 * 1024
    """Largest episode accepted; a larger one goes to the dead letters."""
    payload_ttl_s: float = 60.0
    """Life of a payload whose reference was never accepted."""
    weights_kept: int = 3
    """Weight versions kept in the store."""
    dead_letters_kept: int = 256
    """Dead letters kept; evictions are counted."""
    weights_redis: str = ""
    """URL of a server that holds the weights alone; empty keeps them with the episodes.
    TAMIYO_WEIGHTS_REDIS_PASSWORD gives its password."""

    def __post_init__(self) -> None:
        for name in ("max_episodes", "max_bytes", "max_episode_bytes", "weights_kept", "dead_letters_kept"):
            require(getattr(self, name) >= 1, f"queue.{name} is {getattr(self, name)}: it must be at least 1")
        require(
            self.max_episode_bytes <= LARGEST_PAYLOAD,
            f"queue.max_episode_bytes is {self.max_episode_bytes}: a value in Redis is at most {LARGEST_PAYLOAD} long",
        )
        require(self.payload_ttl_s >= 1, f"queue.payload_ttl_s is {self.payload_ttl_s}: it must be at least 1")
        require(
            self.weights_redis == "" or self.weights_redis.startswith(("redis://", "rediss://", "unix://")),
            f"queue.weights_redis is {self.weights_redis!r}: give redis://host:port/0, rediss://... or unix:///path",
        )


@dataclass(frozen=True)
class ActingConfig:
    """All that an actor needs."""

    env: EnvConfig = field(default_factory=EnvConfig)
    gym: GymConfig = field(default_factory=GymConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    actors: ActorsConfig = field(default_factory=ActorsConfig)
    queue: QueueConfig = field(default_factory=QueueConfig)
