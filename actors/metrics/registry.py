"""The registry of all metrics: name, kind, unit and help text. Dashboards and documentation are generated from it."""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """Declaration of a metric or of a family of metrics.

    A metric with a `label` is a family: its members are reported as `prefix/MEMBER` and exported to Prometheus under
    one name, distinguished by the label. With two labels, `first/second`, they are reported as `prefix/MEMBER/MEMBER`.
    """

    name: str
    kind: str  # gauge | counter | histogram
    unit: str
    help: str
    label: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.label.split("/")) if self.label else ()


_TABLE = (
    # The run
    Metric("update", "gauge", "updates", "Number of updates so far"),
    Metric("policy_version", "gauge", "version", "Version of the newest published weights"),
    Metric("elapsed_s", "gauge", "s", "Seconds since the learner started"),
    Metric("episodes_per_s", "gauge", "1/s", "Episodes trained on per second, since the last update"),
    Metric("env_steps", "counter", "steps", "Environment steps trained on"),
    Metric("episodes_trained", "counter", "episodes", "Episodes trained on"),
    # Episodes
    Metric("return_mean", "gauge", "points", "Mean undiscounted return (J on seed hosts) of the episodes that ended"),
    Metric("reward_mean", "gauge", "points", "Mean reward per step of the batch, as used for training"),
    Metric("return_std", "gauge", "points", "Standard deviation of the batch's returns"),
    Metric("return_low", "gauge", "points", "Lower bound of the 95% confidence interval (Student's t) of return_mean"),
    Metric("return_high", "gauge", "points", "Upper bound of the 95% confidence interval (Student's t) of return_mean"),
    Metric("paid_mean", "gauge", "points", "Mean sum of the rewards used for training, including twin and shaping"),
    Metric("final_accuracy", "gauge", "points", "Mean validation accuracy at the end of the batch's episodes"),
    Metric("doublings", "gauge", "1", "Mean doublings of the model's parameters at the end of episodes"),
    Metric("compute_doublings", "gauge", "1", "Mean doublings of the training FLOPs of episodes"),
    Metric("panic_share", "gauge", "ratio", "Share of the batch's episodes that the governor ended"),
    Metric("episode_steps", "gauge", "steps", "Mean length of the batch's whole episodes"),
    # The update
    Metric("loss_policy", "gauge", "1", "Clipped surrogate loss, summed over heads"),
    Metric("loss_value", "gauge", "1", "Value loss in normalized units"),
    Metric("lr", "gauge", "1", "Learning rate of the update, which is lower if its batch is uninformative"),
    Metric("advantage_std", "gauge", "points", "Standard deviation of returns minus values"),
    Metric("value_estimate", "gauge", "points", "Mean value estimate of the batch's steps, in units of the return"),
    Metric("value_mean", "gauge", "points", "Running mean of the returns (PopArt): the value of the critic's output 0"),
    Metric("value_scale", "gauge", "points", "Running deviation of the returns: the unit of the critic's output"),
    Metric("entropy", "gauge", "1", "Normalized entropy over all heads, where they are relevant and not forced"),
    Metric("entropy_coef", "gauge", "1", "Current entropy coefficient"),
    Metric("explained_variance", "gauge", "1", "Share of the returns' variance that the proximal values explain"),
    Metric("kl", "gauge", "nats", "KL divergence of the updated policy from the proximal policy (k3 estimate)"),
    Metric("kl_limit", "gauge", "nats", "Upper limit of kl, where the KL stop ends an update: 1.5 times its target"),
    Metric("kl_stop", "gauge", "1", "1 if the KL stop ended the update early, otherwise 0"),
    Metric("lag_kl", "gauge", "nats", "KL divergence of the proximal policy from the behaviour policy (k3 estimate)"),
    Metric("same_seed_episodes", "gauge", "episodes", "Mean number of other episodes with the same task and seed"),
    Metric("prior_kl", "gauge", "nats", "KL divergence per step of the acting policy from the run's initial policy"),
    Metric("prior_coef", "gauge", "points", "Return subtracted per nat of prior_kl"),
    Metric("ratio_mean", "gauge", "1", "Mean joint probability ratio to the behaviour policy"),
    Metric("ratio_max", "gauge", "1", "Largest joint probability ratio to the behaviour policy"),
    Metric("ratio_error", "gauge", "1", "Largest |ratio - 1| of lag-0 steps: disagreement of actor and learner"),
    Metric("ratio_error_limit", "gauge", "1", "Upper limit of ratio_error: 0.001, or 0.02 with bf16 or TF32"),
    Metric("update_epochs_done", "gauge", "update epochs", "Passes over the batch until the KL stop, with fractions"),
    Metric("skipped_steps", "gauge", "steps", "Optimizer steps of this update skipped for non-finite gradients"),
    Metric("grad_norm_trunk", "gauge", "1", "Gradient norm of encoder and LSTM before clipping"),
    Metric("grad_norm_heads", "gauge", "1", "Gradient norm of the actor heads before clipping"),
    Metric("grad_norm_critic", "gauge", "1", "Gradient norm of the critic before clipping"),
    Metric("hidden_norm", "gauge", "1", "Mean norm of the core's output, with the read vector of a memory"),
    Metric("clipped_rewards", "gauge", "steps", "Rewards that were clipped to 100 standard deviations of the return"),
    Metric("clipped_values", "gauge", "1", "Values that were clipped to 100 standard deviations around the mean"),
    Metric("clipped_log_probs", "gauge", "steps", "Steps that are over e^20 times as probable as when chosen: clipped"),
    Metric("clipped_observations", "gauge", "1", "Entries that were clipped to 100 standard deviations"),
    Metric("padding_waste", "gauge", "ratio", "Padded steps over valid steps"),
    Metric("forced_fraction", "gauge", "ratio", "Share of steps with a single legal joint action"),
    # Asynchrony and the queue
    Metric("policy_lag_mean", "gauge", "versions", "Mean policy lag of consumed episodes"),
    Metric("policy_lag_max", "gauge", "versions", "Largest policy lag of consumed episodes"),
    Metric("policy_lag_in_flight", "gauge", "versions", "Part of the mean lag from before episodes were queued"),
    Metric("policy_lag_in_queue", "gauge", "versions", "Part of the mean lag from the time in the queue"),
    Metric("queue_depth", "gauge", "episodes", "Episodes waiting in the queue"),
    Metric("dropped_stale", "counter", "episodes", "Episodes dropped because their oldest step was too old"),
    Metric("dead_lettered", "gauge", "episodes", "Episodes that could not be decoded or validated"),
    # Time
    Metric("wait_s", "gauge", "s", "Seconds the learner waited for this batch"),
    Metric("update_s", "gauge", "s", "Duration of the update itself"),
    Metric("checkpoint_s", "gauge", "s", "Duration of writing the last checkpoint"),
    Metric("publish_s", "gauge", "s", "Duration of publishing the last weights"),
    # Actors
    Metric("actor_episodes", "counter", "episodes", "Episodes produced by this actor"),
    Metric("actor_steps_per_s", "gauge", "1/s", "Environment steps per second of this actor"),
    Metric("actor_dropped_backpressure", "counter", "episodes", "Episodes this actor dropped: its buffer was full"),
    Metric("actor_rejected", "counter", "episodes", "Episodes this actor rejected because they held NaN or infinity"),
    Metric("actor_wait_s", "gauge", "s", "Seconds this actor waited for the queue in its last wave"),
    Metric("actor_damaged_weights", "counter", "fetches", "Weights rejected by this actor because they were damaged"),
    # The service
    Metric("actors_alive", "gauge", "actors", "Actors that are running and responsive"),
    Metric("actors_wanted", "gauge", "actors", "Actors that the run requested"),
    Metric("actor_restarts", "counter", "restarts", "Restarts of actors that died"),
    Metric("learner_restarts", "counter", "restarts", "Restarts of a learner that died"),
    Metric("oldest_s", "gauge", "s", "Age of the oldest waiting or pending episode in the queue"),
    Metric("ledger_gap", "gauge", "episodes", "Episodes missing or counted twice in the ledger; must be 0"),
    # The external memory, named as in actors.policy.cores.memory.STATISTICS
    Metric("memory/write_gate", "gauge", "ratio", "Mean write gate of the external memory"),
    Metric("memory/evictions", "gauge", "1", "Used cells overwritten per step"),
    Metric("memory/attention_entropy", "gauge", "1", "Normalized entropy of the attention over cells"),
)

METRICS: dict[str, Metric] = {m.name: m for m in _TABLE}

FAMILIES: dict[str, Metric] = {
    "entropy": Metric("head_entropy", "gauge", "1", "Normalized entropy of the head, if relevant and unforced", "head"),
    "loss_policy": Metric(
        "head_loss_policy", "gauge", "1", "Clipped surrogate loss; all heads add up to loss_policy", "head"
    ),
    "kl": Metric("head_kl", "gauge", "nats", "KL divergence of the head from the behaviour policy (k3)", "head"),
    "clip_fraction": Metric("head_clip_fraction", "gauge", "ratio", "Clipped share of the relevant steps", "head"),
    "op": Metric("op_share", "gauge", "ratio", "Share of steps that chose this op, or range of choices", "op"),
    "choice": Metric("choice_share", "gauge", "ratio", "Share of this choice of a relevant head", "head/choice"),
    "stage": Metric("stage_share", "gauge", "ratio", "Share of this stage in all epochs of all slots", "stage"),
    "ledger": Metric("ledger", "gauge", "episodes", "Episodes by state; the others add up to `accepted`", "term"),
    "actor_ledger": Metric(
        "actor_ledger", "gauge", "episodes", "Episodes of all actors: the parts of `produced`", "term"
    ),
    "wait_share": Metric("wait_share", "gauge", "ratio", "Share of time that is spent waiting for this part", "part"),
    "bottleneck": Metric("bottleneck", "gauge", "1", "1 for the part that limits the run's speed, else 0", "part"),
}
"""Families by the prefix of the reported name: `entropy/op`, `kl/slot`, `op/WAIT`, `choice/slot/0`,
`stage/FOSSILIZED`, `ledger/trained`, ..."""


class Exported(NamedTuple):
    """Name and labels of a metric in Prometheus. Counters are exported with the suffix `_total`, and by Ray with the
    prefix `ray_`."""

    name: str
    labels: dict[str, str]
    metric: Metric

    @property
    def help(self) -> str:
        return f"{self.metric.help} [{self.metric.unit}]"


def lookup(name: str) -> Metric:
    """Return the metric with a reported name. Raises `KeyError` for a name that is not declared."""
    if name in METRICS:
        return METRICS[name]
    prefix = name.partition("/")[0]
    if prefix in FAMILIES and all(_members(name, FAMILIES[prefix])):
        return FAMILIES[prefix]
    raise KeyError(f"metric {name!r} is not declared in actors/metrics/registry.py")


def exported(name: str) -> Exported:
    """Return the Prometheus name and labels of a reported name. Raises `KeyError` like `lookup`."""
    metric = lookup(name)
    return Exported(prometheus_name(metric), dict(zip(metric.labels, _members(name, metric), strict=True)), metric)


def _members(name: str, metric: Metric) -> list[str]:
    """Return one member name per label, empty if missing. The last one may contain slashes."""
    count = len(metric.labels)
    members = name.split("/", count)[1:] if count else []
    return members + [""] * (count - len(members))


def prometheus_name(metric: Metric) -> str:
    """Return the name of a metric in Prometheus, without the suffixes and prefixes of exporters."""
    return "tamiyo_" + metric.name.replace("/", "_")


_SERVE_TABLE = (
    Metric("serve_steps", "counter", "steps", "Steps that the policy computed"),
    Metric("serve_replays", "counter", "steps", "Repeated requests of a step, answered with its stored response"),
    Metric("serve_refusals", "counter", "requests", "Refused requests, by reason"),
    Metric("serve_step_s", "histogram", "s", "Latency of a step, from its request to its response"),
    Metric("serve_batch_steps", "histogram", "steps", "Steps per forward pass"),
    Metric("serve_forward_s", "histogram", "s", "Time to validate one batch and run the forward pass"),
    Metric("serve_sessions", "gauge", "sessions", "Open sessions"),
    Metric("serve_sessions_opened", "counter", "sessions", "Sessions opened, including imported ones"),
    Metric("serve_sessions_imported", "counter", "sessions", "Sessions opened with an exported state"),
    Metric("serve_sessions_expired", "counter", "sessions", "Sessions closed after a time without steps"),
    Metric("serve_sessions_evicted", "counter", "sessions", "Idle sessions closed to make room for new ones"),
    Metric("serve_sessions_moved", "counter", "sessions", "Sessions that had to move to the newest version"),
    Metric("serve_policy_version", "gauge", "version", "Newest policy version served"),
    Metric("serve_versions_held", "gauge", "versions", "Policy versions in memory, including the newest"),
    Metric("serve_swaps", "counter", "swaps", "Number of times that newer weights were loaded"),
    Metric("serve_train_produced", "counter", "episodes", "Episodes and segments of training sessions, by account"),
    Metric("serve_train_accepted", "counter", "episodes", "Of these, those that the queue has accepted"),
    Metric("serve_train_steps", "counter", "steps", "Steps of training sessions in shipped episodes, by account"),
    Metric("serve_train_cut_sessions", "counter", "sessions", "Training sessions that disappeared and were cut"),
    Metric("serve_train_dropped_sessions", "counter", "sessions", "Training sessions that ended and were dropped"),
    Metric("serve_train_refused", "counter", "requests", "Rewards and observations that were not finite or too large"),
    Metric("serve_train_unsent", "gauge", "episodes", "Episodes of training sessions that wait for the queue"),
)

SERVE: dict[str, Metric] = {m.name: m for m in _SERVE_TABLE}
"""Metrics of the policy endpoint; Prometheus names have the prefix `tamiyo_`."""
