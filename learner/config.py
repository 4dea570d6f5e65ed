"""Configuration of the learner: frozen dataclasses that are validated when they are built."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from actors.config import require, require_least, require_positive

RATIO_ERROR, LOW_PRECISION_RATIO_ERROR = 1e-3, 2e-2


@dataclass(frozen=True)
class LearnerConfig:
    """The factored recurrent PPO update."""

    updates: int = 1000
    """Updates to run. For shorter and longer trainings."""
    max_seconds: float | None = None
    """Stop after so many seconds. For a budget of time."""
    total_steps: int | None = None
    """Stop after so many environment steps, not after `updates`. For a budget of steps."""
    stop_at_return: float | None = None
    """Stop when the last 100 episodes returned this on average. For known goals."""
    batch_episodes: int = 64
    """Episodes, or segments, per update. More for noisy returns."""
    batch_steps: int = 0
    """Minimum steps per update. For short Gymnasium episodes."""
    update_epochs: int | None = None
    """Passes over a batch; null: 1 if recurrent, else 10. More use samples better, move further."""
    minibatches: int = 1
    """Minibatches of whole sequences per pass. More take more optimizer steps."""
    lr: float | None = None
    """AdamW learning rate; less for uninformative batches. Null: 2.5e-4 if recurrent, else 3e-4. Lower it if
    unstable."""
    grad_clip: float = 0.5
    """Global gradient-norm clip. Lower it if unstable."""
    gamma: float = 1.0
    """Discount: 1 for seed hosts, whose rewards are J; 0.99 where episodes may be endless."""
    gae_lambda: float = 0.97
    """Lambda of GAE. Lower it where the critic is good and returns noisy."""
    episodes_per_seed: int = 1
    """Episodes of a seed in a wave, less the mean advantage of the others. For seed hosts whose tasks differ much."""
    objective: Literal["clipped", "decoupled"] = "clipped"
    """Ratios to the behaviour policy, or to the proximal one. `decoupled` for old episodes."""
    ratio: Literal["per_head", "joint"] = "per_head"
    """A clipped ratio per head, or one of the action, for comparisons."""
    policy_denominator: Literal["steps", "head_steps"] = "steps"
    """Average over unforced steps, or a head's relevant ones. `head_steps` for seldom relevant heads."""
    clip: float = 0.2
    """Clip of the ratio. Lower it if unstable."""
    value_clip: float | None = 0.2
    """Clip of values, in deviations of the return; null: none. Off where returns change fast."""
    value_coef: float = 0.5
    """Weight of the value loss. For critics that lag or disturb the trunk."""
    entropy_start: float = 0.05
    """Entropy coefficient at first. Raise it if the policy collapses."""
    entropy_end: float = 0.005
    """The same after `entropy_anneal_updates`. Raise it if the policy collapses late."""
    entropy_anneal_updates: int = 200
    """Updates of the linear fall, 0 for none. As long as exploring pays."""
    continuous_entropy_coef: float = 0.0
    """That of continuous actions, per nat. For continuous tasks that need exploration."""
    prior_coef: float = 0.0
    """Return subtracted per nat of divergence from the initial policy. To keep an imitated one."""
    target_kl: float | None = 0.02
    """KL of which 1.5 times stop an update; null: none. Raise for short trainings."""
    max_policy_lag: int = 4
    """Versions that an episode's oldest step may lag, else it is dropped. Raise for long episodes."""
    state_stride: int = 8
    """Steps between stored recurrent states. Lower for shorter chunks, higher for large states."""
    chunk_length: int | None = None
    """Steps that gradients cross, a multiple of `state_stride`; null: whole episodes. For long ones."""
    burn_in: int = 0
    """Steps replayed before a chunk, a multiple of `state_stride`. For recurrent policies of long episodes."""
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    """Of the update; heads and losses stay float32. Less is faster on GPUs from Ampere on."""
    checkpoint_every: int = 1
    """Updates between checkpoints. For large policies on slow disks."""
    checkpoints_kept: int = 3
    """Checkpoints kept. More to roll back further."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Of the update. Auto: CUDA, unless actors reserve all GPUs. A CPU for minibatches of few steps."""
    hang_s: float = 300.0
    """Seconds without a heartbeat (a minibatch, compilation) until the learner is restarted. Raise for large
    policies."""

    def __post_init__(self) -> None:
        require_least(
            self, "learner", 1, "updates", "batch_episodes", "episodes_per_seed", "minibatches", "update_epochs"
        )
        require_least(self, "learner", 1, "checkpoint_every", "checkpoints_kept", "chunk_length", "total_steps")
        require_least(self, "learner", 1, "state_stride")
        require_least(self, "learner", 0, "batch_steps", "value_coef", "entropy_start", "entropy_end", "max_policy_lag")
        require_least(self, "learner", 0, "continuous_entropy_coef", "entropy_anneal_updates", "prior_coef", "burn_in")
        require_positive(self, "learner", "max_seconds", "lr", "grad_clip", "value_clip", "target_kl", "hang_s")
        require(
            self.minibatches <= max(self.batch_episodes, self.batch_steps // (self.chunk_length or 2**31)),
            f"learner.minibatches is {self.minibatches} with {self.batch_episodes} episodes per batch: a minibatch "
            "holds whole episodes, or whole chunks of learner.chunk_length",
        )
        require(0 < self.gamma <= 1, f"learner.gamma is {self.gamma}: give a discount in (0, 1]")
        require(0 <= self.gae_lambda <= 1, f"learner.gae_lambda is {self.gae_lambda}: give a value in [0, 1]")
        require(0 < self.clip < 1, f"learner.clip is {self.clip}: give a value in (0, 1)")
        require(
            self.ratio == "per_head" or self.policy_denominator == "steps",
            "learner.policy_denominator is head_steps, but learner.ratio is joint: one ratio has no heads to average",
        )
        require(
            self.burn_in == 0 or self.chunk_length is not None,
            "learner.burn_in needs learner.chunk_length: nothing precedes a whole episode",
        )
        stride = self.state_stride
        for name in ("chunk_length", "burn_in"):
            steps = getattr(self, name)
            require(
                steps is None or steps % stride == 0,
                f"learner.{name} is {steps}, but states are stored every {stride} steps (learner.state_stride): "
                f"a chunk starts from a stored state, so give a multiple of {stride}",
            )

    @property
    def ratio_error_limit(self) -> float:
        """The `ratio_error` above which acting and learning differ by more than rounding at this precision."""
        return LOW_PRECISION_RATIO_ERROR if self.precision != "float32" else RATIO_ERROR

    @property
    def leave_one_out(self) -> bool:
        """Whether the mean advantage of the other episodes of a seed is subtracted."""
        return self.episodes_per_seed > 1

    @property
    def keeps_prior(self) -> bool:
        """Whether updates need the initial policy of the run."""
        return self.prior_coef > 0

    def for_core(self, recurrent: bool) -> LearnerConfig:
        """Return the configuration with `update_epochs` and `lr` set to the defaults of a recurrent or feedforward core
        if they are null, and no burn-in for a core without a state."""
        epochs, lr = (1, 2.5e-4) if recurrent else (10, 3e-4)
        burn_in = self.burn_in if recurrent else 0
        chosen = {"update_epochs": self.update_epochs or epochs, "lr": self.lr or lr, "burn_in": burn_in}
        return replace(self, **chosen)  # type: ignore[arg-type]
