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
    """LSTM, no state (a baseline), or LSTM with a memory, where much must be remembered for long."""
    hidden_size: int = 128
    """Width of the core. For tasks that need a larger or smaller policy."""
    num_layers: int = 1
    """Layers of the core. For tasks that one layer does not learn."""
    memory_cells: int = 16
    """Cells of the external memory: as many as things to remember."""
    memory_size: int = 32
    """Width of a cell. For larger things."""
    encoder: Literal["slots", "flat"] = "slots"
    """One shared by all slots, or `flat`, a baseline, which spaces without slots always have."""
    encoder_size: int = 128
    """Width of base and slot encoder. Beside `hidden_size`."""
    head_size: int | None = None
    """Hidden width of the heads. Null: half of `hidden_size`. More for many choices."""
    blueprint_embedding: int = 8
    """Size of the blueprint embedding. For many blueprints of your own."""
    choice_embedding: int = 16
    """Size of the op embedding that later heads read. Beside it."""
    heads: Literal["conditioned", "independent"] = "conditioned"
    """Whether later heads read earlier choices. `independent`: a baseline, and spaces without slots."""
    critic: Literal["v", "q_op"] = "v"
    """V(s), or Q(s, op), the op head's baseline. For studies of credit assignment."""
    bootstrap: Literal["expected", "sampled"] = "expected"
    """Bootstrap value with `critic: q_op`: the mean, or a sampled op's, for comparisons."""
    popart: bool = True
    """Normalize value targets and rescale the output (PopArt). Off for comparisons."""
    causal_masks: bool = True
    """Leave heads that are irrelevant to the op out of all terms. False: an ablation."""
    blind: bool = False
    """Hide the observation, as a baseline: masks and the number of steps remain."""
    probability_floor: float = 0.002
    """Minimum probability of a legal choice, within `floor_mass`. Raise it where a choice dies out."""
    floor_mass: float | Literal["auto"] = "auto"
    """Most of one head's floors together. Auto: 0.5 on seed hosts, else 0.01. For heads with many choices."""
    log_std: Literal["constant", "state"] = "constant"
    """Log deviation of continuous actions, by dimension or by `state`, where some need finer ones."""
    initial_log_std: float = 0.0
    """Its start, in half ranges, in [-5, 2]. For simulators that large actions break."""

    @property
    def is_recurrent(self) -> bool:
        """Whether the core has a state."""
        return self.core != "feedforward"

    def __post_init__(self) -> None:
        for name, given in vars(self).items():
            if name == "num_layers" or name.endswith(("_size", "_cells", "_embedding")):
                most = MAX_LAYERS if name == "num_layers" else MAX_WIDTH
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
