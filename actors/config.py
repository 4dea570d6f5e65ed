"""Configuration of the acting side: frozen dataclasses, validated on construction."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import Literal, TypeVar

from actors.errors import UserError

Number = TypeVar("Number", int, float)

MAX_SLOTS = 8
"""Most slots of one host, in its stream and for columns together."""


class ConfigError(UserError, ValueError):
    """An invalid setting. The message says which one, why, and what to do."""


def require(condition: bool, message: str) -> None:
    """Raise `ConfigError` with `message` unless `condition` holds."""
    if not condition:
        raise ConfigError(message)


def span(value: Number | tuple[Number, Number]) -> tuple[Number, Number]:
    """Return the range that a setting names; a single number is a range of one."""
    return value if isinstance(value, tuple) else (value, value)


def _require_range(name: str, value: float | tuple[float, float], least: float, why: str) -> None:
    low, high = span(value)
    require(low >= least, f"{name} is {value}: {why}")
    require(low <= high, f"{name} is {value}: write the smaller number of a range first")


@dataclass(frozen=True)
class EnvConfig:
    """The seed-training environment: host, slots, data and rules."""

    tasks: tuple[str, ...] = ("digits", "wine", "spirals")
    """Training tasks: names listed by `tamiyo tasks`, or mypkg:factory. Each episode draws one by its seed."""
    data_dir: str | None = None
    """Folder with data sets that are not bundled, such as CIFAR-10."""
    download: bool = False
    """Download missing data sets to data_dir."""
    slots: int = 3
    """Slots in the stream of a host: places between its layers where a seed can grow. At least 1."""
    column_slots: int = 2
    """Slots for columns: whole networks of the host's architecture whose logits are added to the host's. A host has at
    most 8 slots of both kinds."""
    host_width: int | tuple[int, int] | None = None
    """Hidden units of an MLP host, or channels of a CNN host. Two numbers are a range, from which each episode draws
    log-uniformly; null uses the range of each task family."""
    horizon_epochs: int | tuple[int, int] = 25
    """Host epochs per episode, with one decision per epoch. Two numbers are a range, from which each episode draws."""
    inner_steps: int | tuple[int, int] = 16
    """Minibatches per host epoch. Two numbers are a range, from which each episode draws the first, twice the first,
    and so on, up to the second."""
    batch_size: int = 64
    """Samples per minibatch."""
    host_lr: float = 5e-3
    """AdamW learning rate of the host."""
    seed_lr: float = 5e-3
    """AdamW learning rate of the seeds."""
    weight_decay: float = 1e-4
    """Decoupled weight decay of hosts and seeds."""
    clip_norm: float = 1.0
    """Gradient-norm clip, per environment and per group (the host and each seed)."""
    rent_weight: float | tuple[float, float] = (0.25, 8.0)
    """Price of parameters: points of accuracy per doubling of the host's parameters, held during a whole episode. Two
    numbers are a range, from which each episode draws log-uniformly. The policy observes the price."""
    rent_warmup_updates: int = 0
    """Updates over which the rent in rewards increases linearly from 0 to `rent_weight`, so that the policy learns the
    benefits of growing before its costs. J always includes the full rent. Every new run starts at 0, also with
    `run.init_from`."""
    budget_ratio: float = 15.0
    """Parameter budget for growth, as a multiple of the host's own parameters; 15 allows four doublings."""
    gates: Literal["permissive", "strict"] = "permissive"
    """How much evidence ADVANCE and FOSSILIZE require."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device on which hosts are trained; auto uses CUDA if available."""
    backend: Literal["auto", "numba", "torch"] = "auto"
    """How a fleet trains its hosts: `numba` runs compiled CPU kernels, one host after the other; `torch` trains all
    hosts together as stacked tensors. `auto` uses numba for MLP hosts on a CPU and torch otherwise."""
    compile: bool = False
    """Fuse operations of the torch backend with torch.compile. The first use takes a minute; only faster on CUDA."""
    cuda_graph: bool = False
    """Replay an epoch's minibatches as a CUDA graph."""
    isolation: Literal["shadow", "straight_through"] = "shadow"
    """How a seed in TRAINING learns without affecting its host."""
    embargo_epochs: int = 2
    """Epochs before the slot of a pruned seed can be used again."""
    contribution_every: int = 1
    """Epochs between measurements of the seeds' contributions."""
    profile: Literal["tamiyo", "classic"] = "tamiyo"
    """Action space: six heads and six ops, or (`classic`) four of each, with automatic advance."""
    reward: Literal["objective", "sparse", "contribution"] = "objective"
    """J as a reward in every step, as a single reward at the end, or in every step with shaping by contributions."""
    shaping_gamma: float = 1.0
    """Discount of the shaping in `reward: contribution`; if it is not the learner's, the optimal policy changes."""
    reference: Literal["untrained", "twin"] = "untrained"
    """Reference of the accuracy in rewards: only the untrained host, or also a twin that never grows."""
    twin_coef: float | None = None
    """Share of the twin's accuracy change that is subtracted from rewards; null uses the one fitted to each task."""
    time_limit: Literal["terminated", "truncated"] = "terminated"
    """Whether the horizon terminates or truncates an episode; `truncated` (bootstrapped) requires that the policy
    cannot observe the horizon."""
    drop_features: float = 0.0
    """Probability that a group of features (contributions, accuracy, training loss, number of rows, scores) is unknown
    for a whole episode, so that the policy can also grow models for which they cannot be measured."""
    observe_time: bool = True
    """Whether the policy observes the horizon and the elapsed share of it."""

    def __post_init__(self) -> None:
        require(len(self.tasks) > 0, "env.tasks is empty: give at least one task")
        require(
            not self.download or self.data_dir is not None, "env.download needs env.data_dir: the folder to download to"
        )
        require(self.slots >= 1, f"env.slots is {self.slots}: a host has at least one slot in its stream")
        require(self.column_slots >= 0, f"env.column_slots is {self.column_slots}: it cannot be negative")
        require(
            self.slots + self.column_slots <= MAX_SLOTS,
            f"env.slots is {self.slots} and env.column_slots is {self.column_slots}: a host has at most {MAX_SLOTS} "
            "slots of both kinds",
        )
        _require_range("env.horizon_epochs", self.horizon_epochs, 1, "an episode has at least one epoch")
        _require_range("env.inner_steps", self.inner_steps, 1, "an epoch has at least one minibatch")
        if self.host_width is not None:
            _require_range("env.host_width", self.host_width, 1, "a host has at least one unit")
        require(self.batch_size >= 2, f"env.batch_size is {self.batch_size}: a minibatch has at least two samples")
        require(self.host_lr > 0 and self.seed_lr > 0, "env.host_lr and env.seed_lr must be positive")
        require(self.weight_decay >= 0, f"env.weight_decay is {self.weight_decay}: it cannot be negative")
        require(self.clip_norm > 0, f"env.clip_norm is {self.clip_norm}: it must be positive")
        least = 0.0 if isinstance(self.rent_weight, (int, float)) else 1e-6  # a log-uniform range excludes 0
        _require_range("env.rent_weight", self.rent_weight, least, "a price cannot be negative, nor a range start at 0")
        require(self.rent_warmup_updates >= 0, "env.rent_warmup_updates cannot be negative; 0 disables the warm-up")
        require(self.budget_ratio > 0, f"env.budget_ratio is {self.budget_ratio}: it must be positive")
        require(self.embargo_epochs >= 1, f"env.embargo_epochs is {self.embargo_epochs}: it must be at least 1")
        require(
            self.contribution_every >= 1, f"env.contribution_every is {self.contribution_every}: it must be at least 1"
        )
        require(
            0 <= self.drop_features < 1,
            f"env.drop_features is {self.drop_features}: give a probability of at least 0 and below 1",
        )
        require(
            not self.cuda_graph or self.device != "cpu",
            "env.cuda_graph needs a CUDA device, but env.device is cpu: change one of them",
        )
        self._check_reward()

    def _check_reward(self) -> None:
        require(
            0 < self.shaping_gamma <= 1, f"env.shaping_gamma is {self.shaping_gamma}: give the learner's, in (0, 1]"
        )
        require(
            self.twin_coef is None or (isfinite(self.twin_coef) and self.twin_coef >= 0),
            f"env.twin_coef is {self.twin_coef}: give a number of at least 0, or null for each task's fitted one",
        )
        require(
            self.twin_coef is None or self.reference == "twin",
            f"env.twin_coef is {self.twin_coef}, but env.reference is 'untrained', so there is no twin: "
            "set env.reference to twin, or leave env.twin_coef out",
        )
        if self.time_limit == "truncated":
            require(
                not self.observe_time,
                "env.time_limit is truncated, but the policy observes the horizon: there is no reward after it, so a "
                "critic that bootstraps there diverges. Use 'terminated', or hide the horizon with "
                "env.observe_time false",
            )
            require(
                self.reward != "sparse",
                "env.reward is sparse and env.time_limit is truncated: the only reward comes with termination, which "
                "truncated episodes do not reach. Use env.time_limit terminated, or env.reward objective",
            )

    @property
    def total_slots(self) -> int:
        """Slots of both kinds."""
        return self.slots + self.column_slots

    @property
    def max_horizon_epochs(self) -> int:
        return span(self.horizon_epochs)[1]

    @property
    def max_inner_steps(self) -> int:
        return span(self.inner_steps)[1]


@dataclass(frozen=True)
class GymConfig:
    """A Gymnasium environment to train on instead of the seed-training environment; disabled if `id` is empty."""

    id: str = ""
    """Registered id, such as CartPole-v1, or mypkg:MyEnv-v0 to import mypkg first. If empty, the seed-training
    environment is used."""
    kwargs: tuple[str, ...] = ()
    """Arguments of `gymnasium.make` as name=value. Values are parsed as JSON; invalid JSON is a string."""
    wrappers: tuple[str, ...] = ()
    """Wrappers of each environment, innermost first, as module:Class. Not supported with vectorization own."""
    vectorization: Literal["sync", "async", "own"] = "sync"
    """Environments in one process, in one process each, or vectorized by the environment's own entry point."""
    squash: bool = False
    """Squash continuous actions to their bounds by tanh, instead of clipping them there. All bounds must be finite."""
    max_segment_steps: int = 1024
    """Steps after which a running episode is shipped as a segment, bootstrapped, and continued in the next segment."""

    def __post_init__(self) -> None:
        for pair in self.kwargs:
            require("=" in pair, f"gym.kwargs holds {pair!r}: write name=value")
        for wrapper in self.wrappers:
            require(":" in wrapper, f"gym.wrappers holds {wrapper!r}: write module:Class")
        require(
            not self.wrappers or self.vectorization != "own",
            "gym.wrappers apply to single environments, which gym.vectorization own does not have: use sync or async",
        )
        require(
            self.max_segment_steps >= 1, f"gym.max_segment_steps is {self.max_segment_steps}: it must be at least 1"
        )


MAX_WIDTH, MAX_LAYERS = 1 << 16, 64  # limits for files, checked before a network is built
MAX_FLOOR_MASS = 0.5
"""Largest total probability of one head's floors, and the value for weights that do not state one."""


@dataclass(frozen=True)
class PolicyConfig:
    """The factored recurrent actor-critic; published weights include its architecture."""

    core: Literal["lstm", "feedforward", "lstm+memory"] = "lstm"
    """An LSTM, a feedforward network without state (a baseline), or an LSTM followed by an external memory."""
    hidden_size: int = 128
    """Width of the core."""
    num_layers: int = 1
    """Layers of the core."""
    memory_cells: int = 16
    """Number of cells of the external memory in `core: lstm+memory`."""
    memory_size: int = 32
    """Width of each cell of the external memory."""
    encoder: Literal["slots", "flat"] = "slots"
    """One encoder shared by all slots, or one for the concatenated observation. Observations without slots are always
    flat."""
    encoder_size: int = 128
    """Width of the base encoder and of the shared slot encoder."""
    head_size: int = 64
    """Hidden width of the heads."""
    blueprint_embedding: int = 8
    """Size of the learned blueprint embedding."""
    choice_embedding: int = 16
    """Size of the op embedding that later heads read."""
    heads: Literal["conditioned", "independent"] = "conditioned"
    """Whether later heads read the earlier choices. In action spaces without op and slot they never do."""
    critic: Literal["v", "q_op"] = "v"
    """V(s), or Q(s, op): one value per op, so that the op head has its own baseline."""
    bootstrap: Literal["expected", "sampled"] = "expected"
    """Bootstrap value of truncated episodes with `critic: q_op`: the expectation over legal ops, or the value of a
    sampled op."""
    popart: bool = True
    """Normalize value targets and rescale the value output in place (PopArt)."""
    causal_masks: bool = True
    """Exclude heads that are irrelevant to the chosen op from log-probs, entropies and losses. If false (an ablation),
    they are sampled from all their choices and trained at every step."""
    blind: bool = False
    """Hide the observation, so that the policy only knows masks and the number of steps, as a fixed schedule does."""
    probability_floor: float = 0.002
    """Minimum probability of each legal choice in every head, subject to `floor_mass`."""
    floor_mass: float | Literal["auto"] = "auto"
    """Maximum total probability of one head's floors: with n legal choices, each floor is at most floor_mass / n. Auto
    is 0.01 in Gymnasium environments, and 0.5 in the seed-training environment, whose heads are small."""
    log_std: Literal["constant", "state"] = "constant"
    """Logarithm of the standard deviation of continuous actions: one parameter per dimension, or a linear function of
    the core's output."""
    initial_log_std: float = 0.0
    """Its initial value, in units of half the range of a bounded action. It is clamped to [-5, 2]."""
    compile: bool = False
    """Run acting and training with torch.compile. The first calls take tens of seconds. Inputs beyond PyTorch's
    recompilation limit run eagerly, with one warning."""

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
        require(-5 <= self.initial_log_std <= 2, f"policy.initial_log_std is {self.initial_log_std}: give -5 to 2")
        require(
            0 <= self.probability_floor <= 0.05, f"policy.probability_floor is {self.probability_floor}: give 0 to 0.05"
        )
        require(
            self.floor_mass == "auto" or 0 < self.floor_mass <= MAX_FLOOR_MASS,
            f"policy.floor_mass is {self.floor_mass}: give auto, or more than 0 and at most {MAX_FLOOR_MASS}",
        )


@dataclass(frozen=True)
class ActorsConfig:
    """The pool of actors."""

    count: int | Literal["auto"] = 2
    """Actor processes. A number is requested from the cluster, which may scale up for it. Auto uses the resources that
    the cluster has: one actor per free CPU, more when nodes join, fewer when they leave."""
    max_count: int = 64
    """Maximum number of actors with `count: auto`. The limit is lower if the episodes of so many actors would be too
    stale to train on."""
    envs_per_actor: int = 8
    """Environments that each actor steps together; a wave is one episode of each."""
    episodes_per_seed: int = 1
    """Episodes of each seed in a wave, which differ in their actions alone; for `learner.peer_baseline`."""
    buffer_episodes: int = 64
    """Unsent episodes that an actor keeps while the queue is busy. When the buffer is full, the oldest is dropped and
    counted."""
    fetch_timeout_s: float = 60.0
    """Seconds that an actor waits for the first weights before it fails."""
    gpus_per_actor: float = 0.0
    """Share of a GPU that each actor reserves, so that several can use one; 0 reserves none."""
    hang_s: float = 300.0
    """Seconds without an environment step or an attempt to reach the server after which a busy actor is killed and
    restarted. One attempt to reach a server that never responds takes up to 190 s."""
    spares: int = 1
    """Started processes, of about 300 MB each, that wait to take the place of an actor that dies. Not used on a cluster
    or with `gpus_per_actor`, because a spare reserves no resources."""

    def __post_init__(self) -> None:
        require(self.at_least >= 1, f"actors.count is {self.count}: at least one actor is needed")
        require(self.max_count >= 1, f"actors.max_count is {self.max_count}: at least one actor is needed")
        require(self.envs_per_actor >= 1, f"actors.envs_per_actor is {self.envs_per_actor}: it must be at least 1")
        require(
            self.episodes_per_seed >= 1 and self.envs_per_actor % self.episodes_per_seed == 0,
            f"actors.episodes_per_seed is {self.episodes_per_seed}: it must divide actors.envs_per_actor, "
            f"{self.envs_per_actor}",
        )
        require(
            self.buffer_episodes >= self.envs_per_actor,
            f"actors.buffer_episodes is {self.buffer_episodes}: it must hold one wave ({self.envs_per_actor} episodes)",
        )
        for name in ("fetch_timeout_s", "hang_s"):
            require(getattr(self, name) > 0, f"actors.{name} is {getattr(self, name)}: it must be positive")
        require(self.spares >= 0, f"actors.spares is {self.spares}: it must not be negative")
        require(
            0 <= self.gpus_per_actor < 1,
            f"actors.gpus_per_actor is {self.gpus_per_actor}: give a share of one GPU, at least 0 and below 1",
        )

    @property
    def at_least(self) -> int:
        """Number of actors at the start."""
        return self.count if isinstance(self.count, int) else 1


MAX_REDIS_VALUE_BYTES = 512 * 1024 * 1024  # Redis's default limit (proto-max-bulk-len)


@dataclass(frozen=True)
class QueueConfig:
    """Limits of the episode queue and of the weight store."""

    max_episodes: int = 256
    """Episodes waiting in the queue at which further ones are refused as BUSY."""
    max_bytes: int = 256 * 1024 * 1024
    """Bytes waiting in the queue at which further episodes are refused as BUSY."""
    max_episode_bytes: int = 16 * 1024 * 1024
    """Size limit of an episode; larger ones become dead letters."""
    payload_ttl_s: float = 60.0
    """Seconds after which a payload expires if no queue entry refers to it."""
    weights_kept: int = 3
    """Number of weight versions kept in the store."""
    dead_letters_kept: int = 256
    """Number of dead letters kept; evicted ones are counted."""
    weights_redis: str = ""
    """URL of a separate Redis server for the weights; if empty, they are in the same server as the episodes. Set its
    password with TAMIYO_WEIGHTS_REDIS_PASSWORD."""

    def __post_init__(self) -> None:
        for name in ("max_episodes", "max_bytes", "max_episode_bytes", "weights_kept", "dead_letters_kept"):
            require(getattr(self, name) >= 1, f"queue.{name} is {getattr(self, name)}: it must be at least 1")
        require(
            self.max_episode_bytes <= MAX_REDIS_VALUE_BYTES,
            f"queue.max_episode_bytes is {self.max_episode_bytes}: Redis stores at most {MAX_REDIS_VALUE_BYTES} bytes",
        )
        require(self.payload_ttl_s >= 1, f"queue.payload_ttl_s is {self.payload_ttl_s}: it must be at least 1")
        require(
            self.weights_redis == "" or self.weights_redis.startswith(("redis://", "rediss://", "unix://")),
            f"queue.weights_redis is {self.weights_redis!r}: give redis://host:port/0, rediss://... or unix:///path",
        )


@dataclass(frozen=True)
class ActingConfig:
    """All settings of an actor."""

    env: EnvConfig = field(default_factory=EnvConfig)
    gym: GymConfig = field(default_factory=GymConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    actors: ActorsConfig = field(default_factory=ActorsConfig)
    queue: QueueConfig = field(default_factory=QueueConfig)
