"""Every metric once: name, unit, help. The lowest room, since all sides report."""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    name: str
    kind: str  # gauge | counter | histogram
    unit: str
    help: str


_TABLE = (
    # The run
    Metric("update", "gauge", "updates", "Updates applied so far"),
    Metric("policy_version", "gauge", "version", "Version of the newest published weights"),
    Metric("elapsed_s", "gauge", "s", "Seconds since the learner started"),
    Metric("episodes_per_s", "gauge", "1/s", "Episodes trained per second, since the last update"),
    Metric("env_steps", "counter", "steps", "Environment steps trained on"),
    Metric("episodes_trained", "counter", "episodes", "Episodes trained on"),
    # Episodes
    Metric(
        "return_mean",
        "gauge",
        "points",
        "Mean undiscounted return of the batch's whole episodes (J, where there is one), of its segments without any",
    ),
    Metric("return_std", "gauge", "points", "Standard deviation of the batch's returns"),
    Metric("paid_mean", "gauge", "points", "Mean sum of the rewards as paid, twin and shaping included"),
    Metric("final_accuracy", "gauge", "points", "Mean validation accuracy at the end of the batch's episodes"),
    Metric("growth_ratio", "gauge", "ratio", "Mean added parameters over host parameters at the end of episodes"),
    Metric("episode_steps", "gauge", "steps", "Mean length of the batch's whole episodes"),
    # The update
    Metric("loss_policy", "gauge", "1", "Clipped surrogate, summed over heads"),
    Metric("loss_value", "gauge", "1", "Value loss in normalised units"),
    Metric("entropy_coef", "gauge", "1", "Entropy coefficient in force"),
    Metric("explained_variance", "gauge", "1", "Explained variance of the proximal values; 0 when returns have none"),
    Metric("kl", "gauge", "nats", "k3 estimate of the KL to the proximal policy at the last check"),
    Metric("lag_kl", "gauge", "nats", "k3 estimate of the KL of the proximal to the behaviour policy"),
    Metric("ratio_mean", "gauge", "1", "Mean joint ratio to the behaviour policy"),
    Metric("ratio_max", "gauge", "1", "Largest joint ratio to the behaviour policy"),
    Metric(
        "ratio_error",
        "gauge",
        "1",
        "Largest |ratio - 1| of lag-0 steps before the first step: acting and learning disagree",
    ),
    Metric(
        "update_epochs_done", "gauge", "update epochs", "Passes over the batch before the KL stop, fractions counted"
    ),
    Metric("skipped_steps", "gauge", "steps", "Optimizer steps skipped for non-finite gradients, in this update"),
    Metric("grad_norm_trunk", "gauge", "1", "Gradient norm of encoder and LSTM before the clip"),
    Metric("grad_norm_heads", "gauge", "1", "Gradient norm of the actor heads before the clip"),
    Metric("grad_norm_critic", "gauge", "1", "Gradient norm of the critic before the clip"),
    Metric("hidden_norm", "gauge", "1", "Mean norm of the LSTM's output"),
    Metric("padding_waste", "gauge", "ratio", "Padded steps over valid steps"),
    Metric("forced_fraction", "gauge", "ratio", "Steps with one legal joint action"),
    # Asynchrony and the queue
    Metric("policy_lag_mean", "gauge", "versions", "Mean policy lag of consumed episodes"),
    Metric("policy_lag_max", "gauge", "versions", "Largest policy lag of consumed episodes"),
    Metric("policy_lag_in_flight", "gauge", "versions", "Part of the mean lag that passed before episodes were put"),
    Metric("policy_lag_in_queue", "gauge", "versions", "Part of the mean lag that passed while episodes waited"),
    Metric("queue_depth", "gauge", "episodes", "Episodes waiting in the queue"),
    Metric("dropped_stale", "counter", "episodes", "Episodes dropped because their oldest step was too old"),
    Metric("dead_lettered", "gauge", "episodes", "Episodes that could not be decoded or validated"),
    # Where the time goes
    Metric("wait_s", "gauge", "s", "Seconds the learner waited for this batch"),
    Metric("update_s", "gauge", "s", "Seconds of the update itself"),
    Metric("checkpoint_s", "gauge", "s", "Seconds of writing the checkpoint"),
    Metric("publish_s", "gauge", "s", "Seconds of publishing the weights"),
    # Actors
    Metric("actor_episodes", "counter", "episodes", "Episodes produced by this actor"),
    Metric("actor_steps_per_s", "gauge", "1/s", "Environment steps per second of this actor"),
    Metric(
        "actor_dropped_backpressure", "counter", "episodes", "Episodes this actor dropped because its buffer was full"
    ),
    Metric("actor_wait_s", "gauge", "s", "Seconds this actor waited for the queue in its last wave"),
    Metric("actor_damaged_weights", "counter", "fetches", "Weights refused by this actor for a wrong checksum"),
    Metric("actor_restarts", "counter", "restarts", "Actors restarted after they died"),
)

METRICS: dict[str, Metric] = {m.name: m for m in _TABLE}

PER_HEAD = {
    "entropy": Metric("entropy", "gauge", "1", "Normalised entropy of the head over its relevant, unforced steps"),
    "kl": Metric("kl", "gauge", "nats", "k3 KL of the head to the behaviour policy"),
    "clip_fraction": Metric("clip_fraction", "gauge", "ratio", "Clipped share of the head's relevant, unforced steps"),
}
"""Metrics with a head in their name: `entropy/op`, `kl/slot`, ... Op shares are `op/WAIT`, `op/GERMINATE`, ..."""


MEMORY = {
    "write_gate": Metric("memory/write_gate", "gauge", "ratio", "Mean write gate of the external memory"),
    "evictions": Metric("memory/evictions", "gauge", "1", "Cells in use that were overwritten, per step"),
    "attention_entropy": Metric(
        "memory/attention_entropy", "gauge", "1", "Entropy of the attention over cells, over the log of their number"
    ),
}
"""Metrics of `core: lstm+memory`; their names are those of `actors.policy.memory.STATISTICS`."""


def lookup(name: str) -> Metric:
    """The metric behind a reported name; raises KeyError for a name that the tables do not declare."""
    if name in METRICS:
        return METRICS[name]
    family, _, part = name.partition("/")
    if family in PER_HEAD and part:
        return PER_HEAD[family]._replace(name=name)
    if family == "memory" and part in MEMORY:
        return MEMORY[part]
    if family == "op" and part:
        return Metric(name, "gauge", "ratio", "Share of steps that chose this op")
    raise KeyError(f"metric {name!r} is not declared in actors/metrics.py")


_SERVE_TABLE = (
    Metric("serve_steps", "counter", "steps", "Steps decided"),
    Metric("serve_replays", "counter", "steps", "Repeated steps that were answered from memory or joined"),
    Metric("serve_refusals", "counter", "requests", "Requests turned down, by reason"),
    Metric("serve_step_s", "histogram", "s", "From a step's arrival to its answer"),
    Metric("serve_batch_steps", "histogram", "steps", "Steps in one forward pass"),
    Metric("serve_forward_s", "histogram", "s", "Checks and forward pass of one batch"),
    Metric("serve_sessions", "gauge", "sessions", "Open sessions"),
    Metric("serve_sessions_opened", "counter", "sessions", "Sessions opened, imported ones included"),
    Metric("serve_sessions_imported", "counter", "sessions", "Sessions that came with an exported state"),
    Metric("serve_sessions_expired", "counter", "sessions", "Sessions that expired"),
    Metric("serve_policy_version", "gauge", "version", "Newest version served"),
    Metric("serve_versions_held", "gauge", "versions", "Versions held, the newest included"),
    Metric("serve_swaps", "counter", "swaps", "New weights taken up"),
)

SERVE: dict[str, Metric] = {m.name: m for m in _SERVE_TABLE}
"""Metrics of the policy endpoint, as Prometheus shows them, `tamiyo_` in front."""
