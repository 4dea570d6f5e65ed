"""Configuration of the learner: frozen, validated when built, the reason in the message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from actors.config import require


@dataclass(frozen=True)
class LearnerConfig:
    """The factored recurrent PPO update (SPEC 8)."""

    updates: int = 1000
    """Updates to run."""
    max_seconds: float | None = None
    """Stop after this many seconds, even if updates are left."""
    batch_episodes: int = 64
    """Episodes per update."""
    update_epochs: int = 1
    """Passes over a batch."""
    minibatches: int = 1
    """Minibatches per pass, whole sequences each."""
    lr: float = 2.5e-4
    """AdamW learning rate."""
    weight_decay: float = 1e-4
    """Decoupled weight decay; 0 on norms, biases and embeddings."""
    grad_clip: float = 0.5
    """Global gradient-norm clip."""
    gamma: float = 1.0
    """Discount."""
    gae_lambda: float = 0.97
    """Lambda of generalised advantage estimation."""
    clip: float = 0.2
    """Clip of the per-head ratio."""
    value_clip: float | None = 0.2
    """Clip of the value around its proximal value, in running standard deviations of the return; null turns it off."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_start: float = 0.05
    """Entropy coefficient at the first update."""
    entropy_end: float = 0.005
    """Entropy coefficient after `entropy_anneal_updates`."""
    entropy_anneal_updates: int = 200
    """Updates over which the entropy coefficient falls linearly; 0 keeps `entropy_coef`."""
    entropy_coef: float = 0.01
    """Constant entropy coefficient where `entropy_anneal_updates` is 0."""
    target_kl: float = 0.02
    """An update stops before the step at which KL to the proximal policy exceeds 1.5 times this."""
    max_policy_lag: int = 4
    """Episodes whose oldest step is more versions behind are dropped and counted."""
    state_stride: int = 8
    """Steps between the recurrent states that an episode stores."""
    max_padding_waste: float = 1.3
    """Padded over valid steps that length buckets may reach."""
    checkpoint_every: int = 1
    """Updates between checkpoints; episodes are acknowledged when theirs is durable."""
    checkpoints_kept: int = 3
    """Checkpoints kept on disk."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the update runs; auto is CUDA where present."""

    def __post_init__(self) -> None:
        positive = (
            "updates",
            "batch_episodes",
            "update_epochs",
            "minibatches",
            "state_stride",
            "checkpoint_every",
            "checkpoints_kept",
        )
        for name in positive:
            require(getattr(self, name) >= 1, f"learner.{name} is {getattr(self, name)}: it must be at least 1")
        require(
            self.max_seconds is None or self.max_seconds > 0,
            "learner.max_seconds must be positive, or null for no limit",
        )
        require(
            self.minibatches <= self.batch_episodes,
            f"learner.minibatches is {self.minibatches} "
            f"with {self.batch_episodes} episodes per batch: a minibatch holds whole episodes",
        )
        require(self.lr > 0, f"learner.lr is {self.lr}: it must be positive")
        require(self.weight_decay >= 0, "learner.weight_decay cannot be negative")
        require(self.grad_clip > 0, "learner.grad_clip must be positive")
        require(0 < self.gamma <= 1, f"learner.gamma is {self.gamma}: give a discount in (0, 1]")
        require(0 <= self.gae_lambda <= 1, f"learner.gae_lambda is {self.gae_lambda}: give a value in [0, 1]")
        require(0 < self.clip < 1, f"learner.clip is {self.clip}: give a value in (0, 1)")
        require(
            self.value_clip is None or self.value_clip > 0,
            "learner.value_clip must be positive, or null to turn it off",
        )
        require(self.value_coef >= 0, "learner.value_coef cannot be negative")
        require(
            min(self.entropy_start, self.entropy_end, self.entropy_coef) >= 0, "entropy coefficients cannot be negative"
        )
        require(self.entropy_anneal_updates >= 0, "learner.entropy_anneal_updates cannot be negative")
        require(self.target_kl > 0, "learner.target_kl must be positive")
        require(self.max_policy_lag >= 0, "learner.max_policy_lag cannot be negative")
        require(
            self.max_padding_waste >= 1,
            f"learner.max_padding_waste is {self.max_padding_waste}: padding cannot be below 1",
        )
