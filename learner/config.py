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
    """Updates to run."""
    max_seconds: float | None = None
    """Stop after this many seconds, even if updates are left. For a budget of time."""
    total_steps: int | None = None
    """Stop after this many environment steps instead of after `updates`. For a budget of steps."""
    stop_at_return: float | None = None
    """Stop as soon as the last 100 episodes returned this much on average. Of the sampling policy; for tasks with a
    known goal."""
    batch_episodes: int = 64
    """Episodes per update, or segments of long ones. More for noisy returns."""
    batch_steps: int = 0
    """Minimum steps per update. If episodes are short, a batch takes more than `batch_episodes`; for Gymnasium
    environments."""
    update_epochs: int | None = None
    """Passes over a batch. Null is 1 for recurrent cores and 10 for a feedforward one; more use samples better, and
    move further."""
    minibatches: int = 1
    """Minibatches per pass, whole sequences each. More take more steps of the optimizer."""
    lr: float | None = None
    """AdamW learning rate. Null is 2.5e-4 for recurrent cores and 3e-4 for a feedforward one; lower it if training is
    unstable."""
    grad_clip: float = 0.5
    """Global gradient-norm clip. Lower it if training is unstable."""
    gamma: float = 1.0
    """Discount. An episode of a seed host is short, and its rewards add up to J only undiscounted, hence 1; where
    episodes may be long or endless, undiscounted values have no bound, hence 0.99 in preset `general`."""
    gae_lambda: float = 0.97
    """Lambda of generalized advantage estimation. Lower it where the critic is good and returns are noisy."""
    leave_one_out: bool = False
    """Subtract from each advantage that of other episodes with the same seed. More precisely, their mean at the same
    step; for seed hosts, with `actors.episodes_per_seed`."""
    objective: Literal["clipped", "decoupled"] = "clipped"
    """`clipped` uses ratios to the behaviour policy. `decoupled` uses ratios to the proximal policy, weighted for the
    lag, for runs whose episodes are old."""
    ratio: Literal["per_head", "joint"] = "per_head"
    """One clipped ratio per head, or one for the whole action. `joint` is for comparisons."""
    policy_denominator: Literal["steps", "head_steps"] = "steps"
    """Average policy and entropy terms over all unforced steps (`steps`), or per head. `head_steps` are the steps at
    which a head is relevant, for heads that seldom are."""
    clip: float = 0.2
    """Clip of the ratio. Lower it if training is unstable."""
    value_clip: float | None = 0.2
    """Clip of the value around its proximal value; null turns it off. In running standard deviations of the return; off
    where returns change fast."""
    value_coef: float = 0.5
    """Weight of the value loss. For critics that learn too slowly or disturb the trunk."""
    entropy_start: float = 0.05
    """Entropy coefficient at the first update. Raise it if the policy collapses."""
    entropy_end: float = 0.005
    """Entropy coefficient after `entropy_anneal_updates`. Raise it if the policy collapses late."""
    entropy_anneal_updates: int = 200
    """Updates over which the entropy coefficient falls linearly. 0 keeps it at `entropy_end`; as long as exploring
    pays."""
    entropy_anneal_share: float | None = None
    """Share of `updates` over which it falls instead. 1 is the whole run; null uses `entropy_anneal_updates`. For runs
    of other lengths."""
    entropy_coef_min: float = 0.0
    """Floor of the entropy coefficient, whatever the other settings give. For long runs that must keep exploring."""
    continuous_entropy_coef: float = 0.0
    """Entropy coefficient of continuous actions, per nat of differential entropy. Its scale has no maximum; for
    continuous tasks that need exploration."""
    prior_coef: float = 0.0
    """Return subtracted per nat of divergence from the initial policy. That is the imitated one, or that of
    `run.init_from`; it keeps what was imitated."""
    target_kl: float | None = 0.02
    """Stop an update when the KL to the proximal policy exceeds 1.5 times this; null for no stop. It is checked before
    each step. Raise it for short trainings."""
    max_policy_lag: int = 4
    """Maximum lag of an episode's oldest step, in weight versions. Older episodes are dropped and counted; raise it for
    long episodes."""
    state_stride: int = 8
    """Steps between the recurrent states that an episode stores. For chunks and burn-in of other lengths."""
    chunk_length: int | None = None
    """Length in steps of the sequences that gradients are propagated through. A multiple of `state_stride`; null uses
    whole episodes, which long ones may not allow."""
    burn_in: int = 0
    """Steps replayed without gradient before each chunk that starts in mid-episode. A multiple of `state_stride`; once
    per update, with the weights before it. The segments of an episode carry the steps before them. For recurrent
    policies of long episodes."""
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    """Of the update. On GPUs from Ampere on, less is faster: `tf32` rounds the factors of matrix products and of the
    LSTM; `bf16` is the data type of encoder and core. Heads and losses always use float32."""
    checkpoint_every: int = 1
    """Updates between checkpoints. For large policies on slow disks."""
    ack: Literal["after_checkpoint", "after_step"] = "after_checkpoint"
    """Acknowledge episodes after a durable checkpoint, or after the optimizer step. In the second case, for slow disks,
    episodes of updates that are lost in a crash count as `trained_then_lost`."""
    checkpoints_kept: int = 3
    """Number of checkpoints to keep. More to roll back further."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the update. Auto uses CUDA if it is available and actors do not reserve all GPUs."""
    hang_s: float = 300.0
    """Seconds without a heartbeat after which the learner is killed. It continues from its newest checkpoint. A single
    minibatch, including compilation, and the pass over the whole batch before the first one must take less time; raise
    it for large policies."""

    def __post_init__(self) -> None:
        require_least(self, "learner", 1, "updates", "batch_episodes", "minibatches", "state_stride", "update_epochs")
        require_least(self, "learner", 1, "checkpoint_every", "checkpoints_kept", "chunk_length", "total_steps")
        require_least(self, "learner", 0, "batch_steps", "value_coef", "entropy_start", "entropy_end", "max_policy_lag")
        require_least(self, "learner", 0, "continuous_entropy_coef", "entropy_coef_min", "entropy_anneal_updates")
        require_least(self, "learner", 0, "prior_coef", "burn_in")
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
            self.entropy_anneal_share is None or 0 < self.entropy_anneal_share <= 1,
            f"learner.entropy_anneal_share is {self.entropy_anneal_share}: give a share above 0 and at most 1, or null",
        )
        require(
            self.entropy_anneal_share is None or self.total_steps is None,
            "learner.entropy_anneal_share is a share of learner.updates, which learner.total_steps replaces: use "
            "learner.entropy_anneal_updates",
        )
        require(
            self.ratio == "per_head" or self.policy_denominator == "steps",
            "learner.policy_denominator is head_steps, but learner.ratio is joint: one ratio has no heads to average",
        )
        self._check_chunks()

    def _check_chunks(self) -> None:
        stride = self.state_stride
        if self.chunk_length is None:
            require(self.burn_in == 0, "learner.burn_in needs learner.chunk_length: nothing precedes a whole episode")
            return
        for name in ("chunk_length", "burn_in"):
            steps = getattr(self, name)
            require(
                steps % stride == 0,
                f"learner.{name} is {steps}, but states are stored every {stride} steps (learner.state_stride): "
                f"a chunk starts from a stored state, so give a multiple of {stride}",
            )

    @property
    def ratio_error_limit(self) -> float:
        """The `ratio_error` above which acting and learning differ by more than rounding at this precision."""
        return LOW_PRECISION_RATIO_ERROR if self.precision != "float32" else RATIO_ERROR

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
