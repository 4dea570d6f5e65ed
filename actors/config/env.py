"""Configuration of the seed-training environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from actors.config.checks import require, require_least, require_positive, require_range, span

MAX_SLOTS = 8
"""Most slots of one host, in its stream and for columns together."""
FEATURE_GROUPS = ("contributions", "accuracy", "train_loss", "scores", "val_rows")
"""Groups of features that `drop_features` can hide."""
PRICE = "price"
"""The group of the prices, which only `hidden_features` can hide."""


@dataclass(frozen=True)
class EnvConfig:
    """The seed-training environment: host, slots, data and rules."""

    tasks: tuple[str, ...] = ("digits", "wine", "spirals")
    """Training tasks, from `tamiyo tasks` or mypkg:factory; an episode draws one. Narrow them to your data."""
    data_dir: str | None = None
    """Folder of data sets that are not bundled. For tasks such as CIFAR-10."""
    download: bool = False
    """Download missing data sets to data_dir. For machines with a network."""
    slots: int = 3
    """Places between a host's layers where seeds grow, at least 1. As many as your models have."""
    column_slots: int = 2
    """Columns, whole networks beside the host; with `slots` at most 8. As many as your models may try; 0 for none."""
    host_width: int | tuple[int, int] | None = None
    """Hidden units or channels; two: a range, drawn log-uniformly; null: the task's. Narrow it to your models."""
    horizon_epochs: int | tuple[int, int] = 25
    """Host epochs of an episode, one decision each; two: a range. As long as your trainings."""
    inner_steps: int | tuple[int, int] = 16
    """Minibatches per host epoch; two: a range of doublings. Fewer are faster, more realistic."""
    batch_size: int = 64
    """Samples per minibatch. For your own tasks."""
    host_lr: float | tuple[float, float] = 5e-3
    """AdamW learning rate of hosts and seeds; two: a range, drawn log-uniformly. Match your own trainings."""
    lr_decay: float = 0.0
    """Share of episodes whose learning rate falls to 0 like half a cosine. Match your own trainings."""
    points_per_doubling: float | tuple[float, float] = (0.25, 8.0)
    """Price in points per doubling of the final model's parameters; two: a range, drawn log-uniformly, observed. Fix it
    for one trade-off."""
    points_per_compute_doubling: float | tuple[float, float] = (1 / 32, 1.0)
    """Price in points per doubling of training FLOPs; two: shares of the other price, drawn log-uniformly, a quarter 0.
    Fix it for one trade-off."""
    budget_ratio: float = 16.0
    """Grown parameters at most, in host sizes; half as much again may be isolated. Lower it where memory is short."""
    gates: Literal["permissive", "strict"] = "permissive"
    """Evidence that ADVANCE and FOSSILIZE require. `strict` for comparisons."""
    prune: bool = True
    """Whether PRUNE is legal. False for ablations."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where hosts train. Auto: MLPs on the CPU, CNNs on the actor's GPU, if any. Where another is faster."""
    backend: Literal["auto", "numba", "torch"] = "auto"
    """Compiled CPU kernels or stacked tensors. Auto: `torch` for CNNs and CUDA. Set `torch` for your own blueprints."""
    cuda_graph: bool = False
    """Replay epochs as CUDA graphs. For hosts on a GPU with short steps."""
    contribution_every: int = 1
    """Epochs between measurements of contributions. As on your models."""
    profile: Literal["tamiyo", "classic"] = "tamiyo"
    """Six heads and six ops, or (`classic`) four each with automatic advance, for comparisons."""
    reward: Literal["objective", "sparse", "contribution"] = "objective"
    """J in every step, at the end, or shaped by contributions; the last two for studies."""
    shaping_gamma: float = 1.0
    """Discount of that shaping. For runs with another `learner.gamma`, which it must equal, or the optimum changes."""
    reference: Literal["untrained", "twin"] = "untrained"
    """Baseline of rewards: the untrained host, or also a never-grow twin: less noise, double work. For short
    trainings."""
    time_limit: Literal["terminated", "truncated"] = "terminated"
    """Whether the horizon terminates, or truncates and is hidden. `truncated` for trainings without a fixed end."""
    drop_features: float = 0.0
    """Probability that contributions, accuracy, training loss, validation rows or scores are unknown in an episode. For
    models without these."""
    hidden_features: tuple[str, ...] = ()
    """Never observed: contributions, accuracy, train_loss, scores, val_rows, price. For ablations."""

    def __post_init__(self) -> None:
        require(len(self.tasks) > 0, "env.tasks is empty: give at least one task")
        require(
            not self.download or self.data_dir is not None, "env.download needs env.data_dir: the folder to download to"
        )
        require(self.slots >= 1, f"env.slots is {self.slots}: a host has at least one slot in its stream")
        require_least(self, "env", 0, "column_slots")
        require_least(self, "env", 2, "batch_size")
        require_least(self, "env", 1, "contribution_every")
        require_positive(self, "env", "budget_ratio")
        require(
            self.slots + self.column_slots <= MAX_SLOTS,
            f"env.slots is {self.slots} and env.column_slots is {self.column_slots}: a host has at most {MAX_SLOTS} "
            "slots of both kinds",
        )
        require_range("env.horizon_epochs", self.horizon_epochs, 1, "an episode has at least one epoch")
        require_range("env.inner_steps", self.inner_steps, 1, "an epoch has at least one minibatch")
        require_range("env.host_lr", self.host_lr, 1e-12, "a learning rate is positive")
        require(0 <= self.lr_decay <= 1, f"env.lr_decay is {self.lr_decay}: give a share from 0 to 1")
        if self.host_width is not None:
            require_range("env.host_width", self.host_width, 1, "a host has at least one unit")
        for name in ("points_per_doubling", "points_per_compute_doubling"):
            price = getattr(self, name)
            least = 0.0 if isinstance(price, (int, float)) else 1e-6  # a log-uniform range excludes 0
            require_range(f"env.{name}", price, least, "a price cannot be negative, nor a range start at 0")
        require(
            0 <= self.drop_features < 1,
            f"env.drop_features is {self.drop_features}: give a probability of at least 0 and below 1",
        )
        for name in self.hidden_features:
            require(
                name in (*FEATURE_GROUPS, PRICE),
                f"env.hidden_features has {name!r}: choose from {', '.join((*FEATURE_GROUPS, PRICE))}",
            )
        require(
            not self.cuda_graph or self.device != "cpu",
            "env.cuda_graph needs a CUDA device, but env.device is cpu: change one of them",
        )
        require(
            0 < self.shaping_gamma <= 1, f"env.shaping_gamma is {self.shaping_gamma}: give the learner's, in (0, 1]"
        )
        require(
            self.time_limit == "terminated" or self.reward != "sparse",
            "env.reward is sparse and env.time_limit is truncated: the only reward comes with termination, which "
            "truncated episodes do not reach. Use env.time_limit terminated, or env.reward objective",
        )

    @property
    def time_hidden(self) -> bool:
        """Whether horizon and elapsed share are unknown. There is no reward after a horizon that is seen, so a critic
        that bootstrapped there would diverge."""
        return self.time_limit == "truncated"

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
