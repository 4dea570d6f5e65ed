"""Configuration of the seed-training environment."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
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
    """Training tasks: names from `tamiyo tasks`, or mypkg:factory. Each episode draws one by its seed. Narrow them to
    your kind of data."""
    data_dir: str | None = None
    """Folder with data sets that are not bundled. For tasks such as CIFAR-10."""
    download: bool = False
    """Download missing data sets to data_dir. For machines with a network."""
    slots: int = 3
    """Slots in the stream of a host. Places between its layers where a seed can grow, at least 1; as many as the models
    to be grown have."""
    column_slots: int = 2
    """Slots for columns. Whole networks of the host's architecture, whose logits are mixed with the host's; 0 for
    models that cannot have any. A host has at most 8 slots of both kinds."""
    host_width: int | tuple[int, int] | None = None
    """Hidden units of an MLP host, or channels of a CNN host. Two numbers are a range, from which each episode draws
    log-uniformly; null uses the range of each task family. Narrow it to the sizes of your own models."""
    horizon_epochs: int | tuple[int, int] = 25
    """Host epochs per episode, with one decision per epoch. Two numbers are a range, from which each episode draws; as
    long as the trainings to be grown."""
    inner_steps: int | tuple[int, int] = 16
    """Minibatches per host epoch. Two numbers are a range, from which each episode draws the first, twice the first,
    and so on, up to the second. Fewer are faster, more are closer to real epochs."""
    batch_size: int = 64
    """Samples per minibatch. For tasks of your own."""
    host_lr: float = 5e-3
    """AdamW learning rate of hosts and seeds. For tasks of your own whose hosts learn too slowly or diverge."""
    points_per_doubling: float | tuple[float, float] = (0.25, 8.0)
    """Price of growth: points of accuracy per doubling of the parameters of the model at the end. Two numbers are a
    range, from which each episode draws log-uniformly; the policy observes the price. Fix it for a policy that serves
    one trade-off."""
    points_per_compute_doubling: float | tuple[float, float] = (1 / 32, 1.0)
    """Price of compute: points of accuracy per doubling of the FLOPs of the whole training. Two numbers are a range of
    shares of `points_per_doubling`, from which three quarters of the episodes draw log-uniformly, while compute is free
    in the others. Fix it, at 0 for instance, for a policy that serves one trade-off."""
    budget_ratio: float = 16.0
    """Parameter budget for growth, as a multiple of the host's, which four doublings nearly exhaust; lower it where
    memory is the limit. Seeds that have not joined may have half as much again, whatever the host has grown."""
    gates: Literal["permissive", "strict"] = "permissive"
    """How much evidence ADVANCE and FOSSILIZE require. `strict` for comparisons with policies that choose freely."""
    prune: bool = True
    """Whether PRUNE is legal. False for ablations."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device on which hosts are trained. Auto trains MLP hosts on the CPU, and CNN hosts on the GPU of an actor that
    reserves a share of one (`actors.gpus_per_actor`), otherwise also on the CPU. For machines where another choice is
    faster."""
    backend: Literal["auto", "numba", "torch"] = "auto"
    """How a fleet trains its hosts. `numba` runs compiled CPU kernels, one host after the other; `torch` trains all
    hosts together as stacked tensors. `auto` uses torch for CNN hosts and, with `device: cuda`, for all hosts. For
    blueprints of your own, which have no kernels."""
    cuda_graph: bool = False
    """Replay an epoch's minibatches as a CUDA graph. For hosts on a GPU, whose steps are shorter than their
    launches."""
    contribution_every: int = 1
    """Epochs between measurements of the seeds' contributions. For policies that are to grow models which are measured
    as rarely."""
    profile: Literal["tamiyo", "classic"] = "tamiyo"
    """Action space. Six heads and six ops, or (`classic`) four of each with automatic advance, for comparisons."""
    reward: Literal["objective", "sparse", "contribution"] = "objective"
    """J as a reward in every step, at the end, or with shaping by contributions. `sparse` and `contribution` for
    studies of credit assignment."""
    shaping_gamma: float = 1.0
    """Discount of the shaping in `reward: contribution`. It must be the learner's, or the optimal policy would
    change."""
    reference: Literal["untrained", "twin"] = "untrained"
    """Reference of the accuracy in rewards: the untrained host, or also a twin that never grows. The twin removes
    noise, and doubles the work on hosts; for short trainings."""
    twin_coef: float | None = None
    """Share of the twin's accuracy change that is subtracted from rewards. Null uses the one fitted to each task, and 1
    for tasks of your own, whose share may be fitted too."""
    time_limit: Literal["terminated", "truncated"] = "terminated"
    """Whether the horizon terminates or truncates an episode. `truncated` (bootstrapped) is for trainings without a
    fixed end; it requires that the policy cannot observe the horizon."""
    drop_features: float = 0.0
    """Probability that a group of features is unknown for a whole episode. The groups are contributions, accuracy,
    training loss, the number of validation rows, and scores. For policies that also grow models for which
    they cannot be measured."""
    hidden_features: tuple[str, ...] = ()
    """Groups of features that the policy never observes, for ablations: contributions, accuracy, train_loss,
    scores, val_rows, or price, which then reads as one point per doubling of the parameters, and none for
    compute."""
    observe_time: bool = True
    """Whether the policy observes the horizon and the elapsed share of it. False for trainings whose end is not
    known."""

    def __post_init__(self) -> None:
        require(len(self.tasks) > 0, "env.tasks is empty: give at least one task")
        require(
            not self.download or self.data_dir is not None, "env.download needs env.data_dir: the folder to download to"
        )
        require(self.slots >= 1, f"env.slots is {self.slots}: a host has at least one slot in its stream")
        require_least(self, "env", 0, "column_slots")
        require_least(self, "env", 2, "batch_size")
        require_least(self, "env", 1, "contribution_every")
        require_positive(self, "env", "host_lr", "budget_ratio")
        require(
            self.slots + self.column_slots <= MAX_SLOTS,
            f"env.slots is {self.slots} and env.column_slots is {self.column_slots}: a host has at most {MAX_SLOTS} "
            "slots of both kinds",
        )
        require_range("env.horizon_epochs", self.horizon_epochs, 1, "an episode has at least one epoch")
        require_range("env.inner_steps", self.inner_steps, 1, "an epoch has at least one minibatch")
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
