"""The layout of the dashboards. Units and descriptions of metrics come from `actors/metrics/registry.py`."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from learner.metric_warnings import LAG_KL


class View(StrEnum):
    """How a panel displays its metrics."""

    LINES = "lines"
    BAND = "band"  # the first metric as a line, the second and third as the ends of a band around it
    STACKED = "stacked"  # members of a family, stacked
    STATES = "states"  # a state timeline: which member of a family is 1
    TOTALS = "totals"  # counters as totals instead of rates, and gauges summed over processes
    QUANTILES = "quantiles"  # quantiles of a histogram
    HEATMAP = "heatmap"  # heatmap of a histogram


class Panel(NamedTuple):
    """One panel of a dashboard."""

    title: str
    metrics: tuple[str, ...]  # names in the registry; `prefix/` is a whole family
    view: View = View.LINES
    by: str = ""  # additional label to group series by
    without: str = ""  # member of a family to leave out
    limit: float | None = None  # threshold of an alert, drawn as a line


class Board(NamedTuple):
    """One dashboard: titled rows of panels."""

    name: str  # file name without suffix
    title: str
    rows: dict[str, tuple[Panel, ...]]
    of_runs: bool = True  # whether the metrics belong to a run, selected by a variable


TRAINING = Board(
    "training",
    "Tamiyo training",
    {
        "Return": (
            Panel("Mean return with 95% interval", ("return_mean", "return_low", "return_high"), View.BAND),
            Panel("Paid return, and standard deviation of returns", ("paid_mean", "return_std")),
            Panel("Mean reward per step", ("reward_mean",)),
            Panel("Updates and versions", ("update", "policy_version")),
            Panel("Episodes and steps trained on", ("episodes_trained", "env_steps")),
            Panel("Episodes per second", ("episodes_per_s",)),
            Panel("Training time", ("elapsed_s",)),
        ),
        "Heads": (
            Panel("Entropy by head", ("entropy/",)),
            Panel("Entropy of all heads", ("entropy",)),
            Panel("Policy loss by head", ("loss_policy/",)),
            Panel("KL by head", ("kl/",)),
            Panel("Clip fraction by head", ("clip_fraction/",)),
        ),
        "Update": (
            Panel("Explained variance", ("explained_variance",)),
            Panel("Value, and running mean and deviation of returns", ("value_estimate", "value_mean", "value_scale")),
            Panel("Losses", ("loss_policy", "loss_value")),
            Panel("KL divergence of the update", ("kl", "kl_limit")),
            Panel("Updates that the KL stop ended", ("kl_stop",)),
            Panel("KL divergence to the behaviour policy", ("lag_kl",), limit=LAG_KL),
            Panel("Importance ratio", ("ratio_mean", "ratio_max")),
            Panel("Ratio error between actors and learner", ("ratio_error", "ratio_error_limit")),
            Panel("Gradient norms", ("grad_norm_trunk", "grad_norm_heads", "grad_norm_critic")),
            Panel("Learning rate", ("lr",)),
            Panel("Entropy coefficient", ("entropy_coef",)),
            Panel("KL divergence to the initial policy", ("prior_kl",)),
            Panel("Coefficient of that KL divergence", ("prior_coef",)),
            Panel("Other episodes with the same seed in a batch", ("same_seed_episodes",)),
            Panel("Update epochs and skipped steps", ("update_epochs_done", "skipped_steps")),
            Panel(
                "Clipped rewards, values, log-probs and observations",
                ("clipped_rewards", "clipped_values", "clipped_log_probs", "clipped_observations"),
            ),
            Panel("Norm of the LSTM state", ("hidden_norm",)),
            Panel("Padding and forced steps", ("padding_waste", "forced_fraction")),
        ),
        "External memory": (
            Panel("Write gate", ("memory/write_gate",)),
            Panel("Evictions and attention", ("memory/evictions", "memory/attention_entropy")),
        ),
    },
)

SERVICE = Board(
    "service",
    "Tamiyo service",
    {
        "Episode ledger": (
            Panel("Accepted episodes by state", ("ledger/",), View.STACKED, without="accepted"),
            Panel("Accepted episodes", ("ledger/accepted",)),
            Panel("Ledger gap (episodes lost or counted twice)", ("ledger_gap",)),
            Panel("Produced episodes by outcome", ("actor_ledger/",)),
            Panel("Dropped and rejected episodes", ("dropped_stale", "dead_lettered")),
        ),
        "Lag and queue": (
            Panel("Policy lag", ("policy_lag_mean", "policy_lag_max")),
            Panel("Policy lag by source", ("policy_lag_in_flight", "policy_lag_in_queue")),
            Panel("Queue depth", ("queue_depth",)),
            Panel("Age of the oldest episode", ("oldest_s",)),
        ),
        "Bottleneck": (
            Panel("Current bottleneck", ("bottleneck/",), View.STATES),
            Panel("Wait time shares", ("wait_share/",)),
            Panel("Update time by phase", ("wait_s", "update_s", "checkpoint_s", "publish_s")),
        ),
        "Actors": (
            Panel("Restarts", ("actor_restarts", "learner_restarts"), View.TOTALS),
            Panel("Actors running and requested", ("actors_alive", "actors_wanted")),
            Panel("Spare actors", ("actors_spare",)),
            Panel("Episodes by actor", ("actor_episodes",), by="role"),
            Panel("Steps per second by actor", ("actor_steps_per_s",), by="role"),
            Panel("Wait time by actor", ("actor_wait_s",), by="role"),
            Panel("Episodes dropped by actor", ("actor_dropped_backpressure",), View.TOTALS, by="role"),
            Panel("Episodes rejected by actor", ("actor_rejected",), View.TOTALS, by="role"),
            Panel("Damaged weights by actor", ("actor_damaged_weights",), View.TOTALS, by="role"),
        ),
    },
)

ENDPOINT = Board(
    "endpoint",
    "Tamiyo policy server",
    {
        "Steps": (
            Panel("Step latency", ("serve_step_s",), View.QUANTILES),
            Panel("Step latency distribution", ("serve_step_s",), View.HEATMAP),
            Panel("Steps and replays", ("serve_steps", "serve_replays")),
            Panel("Refusals", ("serve_refusals",), by="reason"),
        ),
        "Batches": (
            Panel("Steps per batch", ("serve_batch_steps",), View.QUANTILES),
            Panel("Forward pass time", ("serve_forward_s",), View.QUANTILES),
        ),
        "Sessions": (
            Panel("Open sessions", ("serve_sessions",), View.TOTALS),
            Panel(
                "Sessions opened, imported, moved, expired and evicted",
                (
                    "serve_sessions_opened",
                    "serve_sessions_imported",
                    "serve_sessions_moved",
                    "serve_sessions_expired",
                    "serve_sessions_evicted",
                ),
            ),
        ),
        "Training sessions": (
            Panel("Episodes by account", ("serve_train_produced",), by="account"),
            Panel("Episodes accepted by account", ("serve_train_accepted",), by="account"),
            Panel("Steps by account", ("serve_train_steps",), by="account"),
            Panel("Episodes that wait for the queue", ("serve_train_unsent",), by="account"),
            Panel(
                "Sessions that disappeared",
                ("serve_train_cut_sessions", "serve_train_dropped_sessions"),
                View.TOTALS,
            ),
            Panel("Refused rewards and observations", ("serve_train_refused",), View.TOTALS, by="account"),
        ),
        "Weights": (
            Panel("Served policy version", ("serve_policy_version",)),
            Panel("Versions in memory", ("serve_versions_held",)),
            Panel("Weight swaps", ("serve_swaps",), View.TOTALS),
        ),
    },
    of_runs=False,
)

ENVIRONMENT = Board(
    "environment",
    "Tamiyo environments",
    {
        "Growth": (
            Panel("Accuracy and parameters", ("final_accuracy", "growth_ratio")),
            Panel("Episodes ended by the governor", ("panic_share",)),
            Panel("Episode length", ("episode_steps",)),
        ),
        "Actions": (
            Panel("Ops", ("op/",), View.STACKED),
            Panel("Slot stages", ("stage/",), View.STACKED),
            Panel("Choices of the other heads", ("choice/",)),
        ),
    },
)

BOARDS = (TRAINING, SERVICE, ENDPOINT, ENVIRONMENT)
