"""Which metrics are looked at together, and how. Units and descriptions are those of `actors/metrics/registry.py`."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from learner.config_warnings import LAG_KL


class View(StrEnum):
    LINES = "lines"
    BAND = "band"  # the first metric as a line, the second and third as the ends of a band around it
    STACKED = "stacked"  # members of a family that add up to something
    STATES = "states"  # which member of a family holds
    TOTALS = "totals"  # counters as they stand, where each event matters, and gauges of all processes together
    QUANTILES = "quantiles"  # of a histogram
    HEATMAP = "heatmap"  # of a histogram


class Panel(NamedTuple):
    title: str
    metrics: tuple[str, ...]  # as reported; `prefix/` is a whole family
    view: View = View.LINES
    by: str = ""  # a label that keeps series apart, besides that of a family
    without: str = ""  # a member of a family that is left out
    limit: float | None = None  # a line across the panel, above which an alert is raised


class Board(NamedTuple):
    name: str  # of the file
    title: str
    rows: dict[str, tuple[Panel, ...]]
    of_runs: bool = True  # whether its metrics are those of a run, chosen above


TRAINING = Board(
    "training",
    "Tamiyo training",
    {
        "Return": (
            Panel("Return, with its interval", ("return_mean", "return_low", "return_high"), View.BAND),
            Panel("What was paid, and its spread", ("paid_mean", "return_std")),
            Panel("Updates and versions", ("update", "policy_version")),
            Panel("Trained on", ("episodes_trained", "env_steps")),
            Panel("Pace", ("episodes_per_s",)),
            Panel("Time trained", ("elapsed_s",)),
        ),
        "Heads": (
            Panel("Entropy of each head", ("entropy/",)),
            Panel("KL of each head", ("kl/",)),
            Panel("Clipped share of each head", ("clip_fraction/",)),
        ),
        "Update": (
            Panel("Explained variance", ("explained_variance",)),
            Panel("Losses", ("loss_policy", "loss_value")),
            Panel("KL of the update", ("kl",)),
            Panel("KL to the policy that acted", ("lag_kl",), limit=LAG_KL),
            Panel("Joint ratio", ("ratio_mean", "ratio_max")),
            Panel("Disagreement of acting and learning", ("ratio_error", "ratio_error_limit")),
            Panel("Gradient norms", ("grad_norm_trunk", "grad_norm_heads", "grad_norm_critic")),
            Panel("Entropy coefficient", ("entropy_coef",)),
            Panel("Distance from the policy it began with", ("prior_kl",)),
            Panel("Price of that distance", ("prior_coef",)),
            Panel("Passes and skipped steps", ("update_epochs_done", "skipped_steps")),
            Panel("Clipped rewards and observations", ("clipped_rewards", "clipped_observations")),
            Panel("Norm of the LSTM", ("hidden_norm",)),
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
        "Accounts": (
            Panel("Where accepted episodes are", ("ledger/",), View.STACKED, without="accepted"),
            Panel("Accepted", ("ledger/accepted",)),
            Panel("Missed or counted twice", ("ledger_gap",)),
            Panel("What became of produced episodes", ("actor_ledger/",)),
            Panel("Dropped and set aside", ("dropped_stale", "dead_lettered")),
        ),
        "Lag and queue": (
            Panel("Policy lag", ("policy_lag_mean", "policy_lag_max")),
            Panel("Where the lag comes from", ("policy_lag_in_flight", "policy_lag_in_queue")),
            Panel("Queue", ("queue_depth",)),
            Panel("Oldest episode", ("oldest_s",)),
        ),
        "Who is waited for": (
            Panel("Verdict", ("bottleneck/",), View.STATES),
            Panel("Shares of time waited", ("wait_share/",)),
            Panel("Seconds of an update", ("wait_s", "update_s", "checkpoint_s", "publish_s")),
        ),
        "Actors": (
            Panel("Restarts", ("actor_restarts", "learner_restarts"), View.TOTALS),
            Panel("Actors", ("actors_alive", "actors_wanted")),
            Panel("Episodes of each actor", ("actor_episodes",), by="role"),
            Panel("Steps of each actor", ("actor_steps_per_s",), by="role"),
            Panel("Waiting of each actor", ("actor_wait_s",), by="role"),
            Panel("Dropped by each actor", ("actor_dropped_backpressure",), View.TOTALS, by="role"),
            Panel("Damaged weights", ("actor_damaged_weights",), View.TOTALS, by="role"),
        ),
    },
)

ENDPOINT = Board(
    "endpoint",
    "Tamiyo endpoint",
    {
        "Steps": (
            Panel("Latency of a step", ("serve_step_s",), View.QUANTILES),
            Panel("Latency of a step, all of them", ("serve_step_s",), View.HEATMAP),
            Panel("Steps", ("serve_steps", "serve_replays")),
            Panel("Refusals", ("serve_refusals",), by="reason"),
        ),
        "Batches": (
            Panel("Steps in a batch", ("serve_batch_steps",), View.QUANTILES),
            Panel("Forward pass", ("serve_forward_s",), View.QUANTILES),
        ),
        "Sessions": (
            Panel("Open sessions", ("serve_sessions",), View.TOTALS),
            Panel(
                "Opened, imported and expired",
                (
                    "serve_sessions_opened",
                    "serve_sessions_imported",
                    "serve_sessions_expired",
                    "serve_sessions_evicted",
                ),
            ),
        ),
        "Weights": (
            Panel("Version served", ("serve_policy_version",)),
            Panel("Versions held", ("serve_versions_held",)),
            Panel("Swaps", ("serve_swaps",), View.TOTALS),
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
            Panel("Ended by the governor", ("panic_share",)),
            Panel("Length of episodes", ("episode_steps",)),
        ),
        "What is done": (
            Panel("Ops", ("op/",), View.STACKED),
            Panel("Stages", ("stage/",), View.STACKED),
            Panel("Choices of each later head", ("choice/",)),
        ),
    },
)

BOARDS = (TRAINING, SERVICE, ENDPOINT, ENVIRONMENT)
