"""Every metric once: name, unit, help. The lowest room, since all sides report."""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """With a `label` it is a family, reported as `prefix/MEMBER`: the label tells its members apart in Prometheus. Two
    labels, `first/second`, make it a family of two, reported as `prefix/MEMBER/MEMBER`."""

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
    Metric("return_low", "gauge", "points", "Lower end of the 95% interval (Student's t) of return_mean"),
    Metric("return_high", "gauge", "points", "Upper end of the 95% interval (Student's t) of return_mean"),
    Metric("paid_mean", "gauge", "points", "Mean sum of the rewards as paid, twin and shaping included"),
    Metric("final_accuracy", "gauge", "points", "Mean validation accuracy at the end of the batch's episodes"),
    Metric("growth_ratio", "gauge", "ratio", "Mean added parameters over host parameters at the end of episodes"),
    Metric("panic_share", "gauge", "ratio", "Share of the batch's episodes that the governor ended"),
    Metric("episode_steps", "gauge", "steps", "Mean length of the batch's whole episodes"),
    # The update
    Metric("loss_policy", "gauge", "1", "Clipped surrogate, summed over heads"),
    Metric("loss_value", "gauge", "1", "Value loss in normalised units"),
    Metric("entropy_coef", "gauge", "1", "Entropy coefficient in force"),
    Metric("explained_variance", "gauge", "1", "Explained variance of the proximal values; 0 when returns have none"),
    Metric(
        "kl",
        "gauge",
        "nats",
        "How far the update moved the policy: k3 estimate of the KL to the proximal one, after the last step",
    ),
    Metric("lag_kl", "gauge", "nats", "k3 estimate of the KL of the proximal to the behaviour policy"),
    Metric(
        "prior_kl", "gauge", "nats", "Nats a step by which the acting policy strays from the one the run began with"
    ),
    Metric("prior_coef", "gauge", "points", "Return that such a nat costs"),
    Metric("ratio_mean", "gauge", "1", "Mean joint ratio to the behaviour policy"),
    Metric("ratio_max", "gauge", "1", "Largest joint ratio to the behaviour policy"),
    Metric(
        "ratio_error",
        "gauge",
        "1",
        "Largest |ratio - 1| of lag-0 steps before the first step: acting and learning disagree",
    ),
    Metric("ratio_error_limit", "gauge", "1", "What ratio_error may be at most: 0.001, and 0.02 with bf16 or TF32"),
    Metric(
        "update_epochs_done", "gauge", "update epochs", "Passes over the batch before the KL stop, fractions counted"
    ),
    Metric("skipped_steps", "gauge", "steps", "Optimizer steps skipped for non-finite gradients, in this update"),
    Metric("grad_norm_trunk", "gauge", "1", "Gradient norm of encoder and LSTM before the clip"),
    Metric("grad_norm_heads", "gauge", "1", "Gradient norm of the actor heads before the clip"),
    Metric("grad_norm_critic", "gauge", "1", "Gradient norm of the critic before the clip"),
    Metric(
        "hidden_norm",
        "gauge",
        "1",
        "Mean norm of the LSTM's hidden state (last layer; with an external memory, what was read is added)",
    ),
    Metric(
        "clipped_rewards",
        "gauge",
        "steps",
        "Rewards of the batch that were clipped to 100 standard deviations of the return",
    ),
    Metric(
        "clipped_observations",
        "gauge",
        "1",
        "Entries of the batch's observations that entered the running statistics at 100 standard deviations",
    ),
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
    # The service
    Metric("actors_alive", "gauge", "actors", "Actors that answer"),
    Metric("actors_wanted", "gauge", "actors", "Actors that the run asked for"),
    Metric("actor_restarts", "counter", "restarts", "Actors restarted after they died"),
    Metric("learner_restarts", "counter", "restarts", "Times that the learner was started again after it died"),
    Metric("oldest_s", "gauge", "s", "How long the oldest episode, waiting or pending, has been in the queue"),
    Metric(
        "ledger_gap", "gauge", "episodes", "Episodes that the accounts miss or count twice; anything but 0 is a fault"
    ),
    # The external memory, named as in actors.policy.cores.memory.STATISTICS
    Metric("memory/write_gate", "gauge", "ratio", "Mean write gate of the external memory"),
    Metric("memory/evictions", "gauge", "1", "Cells in use that were overwritten, per step"),
    Metric(
        "memory/attention_entropy", "gauge", "1", "Entropy of the attention over cells, over the log of their number"
    ),
)

METRICS: dict[str, Metric] = {m.name: m for m in _TABLE}

FAMILIES: dict[str, Metric] = {
    "entropy": Metric(
        "head_entropy", "gauge", "1", "Normalised entropy of the head over its relevant, unforced steps", "head"
    ),
    "kl": Metric("head_kl", "gauge", "nats", "k3 KL of the head to the behaviour policy", "head"),
    "clip_fraction": Metric(
        "head_clip_fraction", "gauge", "ratio", "Clipped share of the head's relevant, unforced steps", "head"
    ),
    "op": Metric("op_share", "gauge", "ratio", "Share of steps that chose this op", "op"),
    "choice": Metric(
        "choice_share",
        "gauge",
        "ratio",
        "Share of the steps at which a later head mattered that took this choice, or one of a range of choices",
        "head/choice",
    ),
    "stage": Metric(
        "stage_share",
        "gauge",
        "ratio",
        "Share of this stage in all epochs of all slots of the batch's episodes",
        "stage",
    ),
    "ledger": Metric(
        "ledger", "gauge", "episodes", "Accepted episodes, and where each is now: the other terms add up to it", "term"
    ),
    "actor_ledger": Metric(
        "actor_ledger", "gauge", "episodes", "Produced episodes of all actors, and what became of each", "term"
    ),
    "wait_share": Metric(
        "wait_share", "gauge", "ratio", "Share of somebody's time that goes by in waiting for this part", "part"
    ),
    "bottleneck": Metric("bottleneck", "gauge", "1", "1 for the part that the run waits for, 0 for others", "part"),
}
"""By the prefix of the reported name: `entropy/op`, `kl/slot`, `op/WAIT`, `choice/slot/0`, `stage/FOSSILIZED`,
`ledger/trained`, ..."""


class Exported(NamedTuple):
    """What Prometheus is shown: counters get `_total` behind the name, and what comes from Ray `ray_` before it."""

    name: str
    labels: dict[str, str]
    metric: Metric

    @property
    def text(self) -> str:
        return f"{self.metric.help} [{self.metric.unit}]"


def lookup(name: str) -> Metric:
    """The metric behind a reported name; raises KeyError for a name that the tables do not declare."""
    if name in METRICS:
        return METRICS[name]
    prefix = name.partition("/")[0]
    if prefix in FAMILIES and all(_members(name, FAMILIES[prefix])):
        return FAMILIES[prefix]
    raise KeyError(f"metric {name!r} is not declared in actors/metrics/registry.py")


def exported(name: str) -> Exported:
    """As `lookup`, for Prometheus."""
    metric = lookup(name)
    return Exported(prometheus_name(metric), dict(zip(metric.labels, _members(name, metric), strict=True)), metric)


def _members(name: str, metric: Metric) -> list[str]:
    """One for each label, empty where the name lacks it; the last one may have a slash in it."""
    count = len(metric.labels)
    given = name.split("/", count)[1:] if count else []
    return given + [""] * (count - len(given))


def prometheus_name(metric: Metric) -> str:
    return "tamiyo_" + metric.name.replace("/", "_")


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
    Metric("serve_sessions_evicted", "counter", "sessions", "Idle sessions that gave way to new ones"),
    Metric("serve_policy_version", "gauge", "version", "Newest version served"),
    Metric("serve_versions_held", "gauge", "versions", "Versions held, the newest included"),
    Metric("serve_swaps", "counter", "swaps", "New weights taken up"),
)

SERVE: dict[str, Metric] = {m.name: m for m in _SERVE_TABLE}
"""Metrics of the policy endpoint, as Prometheus shows them, `tamiyo_` in front."""
