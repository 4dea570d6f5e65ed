"""Configuration of the policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from actors.config.checks import require

MAX_WIDTH, MAX_LAYERS = 1 << 16, 64  # limits for files, checked before a network is built
MAX_FLOOR_MASS = 0.5
"""Largest total probability of one head's floors, and the value for weights that do not state one."""


@dataclass(frozen=True)
class PolicyConfig:
    """The factored recurrent actor-critic; published weights include its architecture."""

    core: Literal["lstm", "feedforward", "lstm+memory"] = "lstm"
    """LSTM, network without state (a baseline), or LSTM with an external memory. The memory is for tasks where much
    must be remembered for long."""
    hidden_size: int = 128
    """Width of the core. For tasks that need a larger or smaller policy."""
    num_layers: int = 1
    """Layers of the core. For tasks that need a deeper policy."""
    memory_cells: int = 16
    """Number of cells of the external memory in `core: lstm+memory`. As many as things to remember."""
    memory_size: int = 32
    """Width of each cell of the external memory. For larger things to remember."""
    encoder: Literal["slots", "flat"] = "slots"
    """One encoder shared by all slots, or one for the concatenated observation. Observations without slots are always
    flat; `flat` on seed hosts is a baseline."""
    encoder_size: int = 128
    """Width of the base encoder and of the shared slot encoder. Beside `hidden_size`."""
    head_size: int | None = None
    """Hidden width of the heads; null is half of `hidden_size`. Beside `hidden_size`."""
    blueprint_embedding: int = 8
    """Size of the learned blueprint embedding. For many blueprints of your own."""
    choice_embedding: int = 16
    """Size of the op embedding that later heads read. Beside `blueprint_embedding`."""
    heads: Literal["conditioned", "independent"] = "conditioned"
    """Whether later heads read the earlier choices. `independent` is a baseline. In action spaces without op and slot
    they never do."""
    critic: Literal["v", "q_op"] = "v"
    """V(s), or Q(s, op): one value per op, so that the op head has its own baseline. For studies of credit
    assignment."""
    bootstrap: Literal["expected", "sampled"] = "expected"
    """Bootstrap value of truncated episodes with `critic: q_op`. The expectation over legal ops, or the value of a
    sampled op, for comparisons."""
    popart: bool = True
    """Normalize value targets and rescale the value output in place (PopArt). Off for comparisons."""
    causal_masks: bool = True
    """Exclude heads that are irrelevant to the chosen op from log-probs, entropies and losses. If false (an ablation),
    they are sampled from all their choices and trained at every step."""
    blind: bool = False
    """Hide the observation, as a baseline. The policy only knows masks and the number of steps, as a fixed schedule
    does."""
    probability_floor: float = 0.002
    """Minimum probability of each legal choice in every head, subject to `floor_mass`. Raise it where a choice dies
    out."""
    floor_mass: float | Literal["auto"] = "auto"
    """Maximum total probability of one head's floors. With n legal choices, each floor is at most floor_mass / n. Auto
    is 0.01 in Gymnasium environments, and 0.5 in the seed-training environment, whose heads are small. For heads with
    many choices."""
    log_std: Literal["constant", "state"] = "constant"
    """Log standard deviation of continuous actions: a parameter per dimension, or a function of the state. `state`
    where some states need finer actions."""
    initial_log_std: float = 0.0
    """Its initial value, in units of half the range of a bounded action. It is clamped to [-5, 2]. For simulators that
    large actions break."""

    @property
    def is_recurrent(self) -> bool:
        """Whether the core has a state."""
        return self.core != "feedforward"

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
            most, given = MAX_LAYERS if name == "num_layers" else MAX_WIDTH, getattr(self, name)
            unset = name == "head_size" and given is None
            require(unset or 1 <= given <= most, f"policy.{name} is {given}: give 1 to {most}")
        require(-5 <= self.initial_log_std <= 2, f"policy.initial_log_std is {self.initial_log_std}: give -5 to 2")
        require(
            0 <= self.probability_floor <= 0.05, f"policy.probability_floor is {self.probability_floor}: give 0 to 0.05"
        )
        require(
            self.floor_mass == "auto" or 0 < self.floor_mass <= MAX_FLOOR_MASS,
            f"policy.floor_mass is {self.floor_mass}: give auto, or more than 0 and at most {MAX_FLOOR_MASS}",
        )

    @property
    def head_width(self) -> int:
        """Hidden width of the heads."""
        return max(1, self.hidden_size // 2) if self.head_size is None else self.head_size
