"""Grafana alert rules for metrics that indicate a faulty run, each linked to the panel of its metric."""

from __future__ import annotations

from typing import Any, NamedTuple

from actors.metrics.registry import METRICS, prometheus_name
from deploy.dashboards.boards import TRAINING
from deploy.dashboards.grafana import panel_id, uid
from learner.metric_warnings import LAG_KL

Json = dict[str, Any]
SOURCE = "prometheus"  # uid of the data source in deploy/grafana/provisioning/datasources
FOLDER = "Tamiyo"  # of the dashboards, in deploy/grafana/provisioning/dashboards
EVERY, LASTING = "1m", "2m"  # how often a rule is evaluated, and how long its condition must hold


class Alert(NamedTuple):
    """An alert that fires while a metric exceeds a limit."""

    metric: str
    limit: float | str  # a number, or the metric that holds it
    title: str
    advice: str


ALERTS = (
    Alert(
        "kl",
        "kl_limit",
        "Updates move the policy too far",
        "The policy changes by more than 1.5 times learner.target_kl in each update. Lower learner.lr or "
        "learner.update_epochs, or raise learner.minibatches, so that the KL stop is checked more often.",
    ),
    Alert(
        "ratio_error",
        "ratio_error_limit",
        "Actors and learner disagree",
        "Importance ratios of steps by the newest weights differ from 1 by more than rounding. Make sure that actors "
        "and learner run the same version; with learner.precision tf32 or bf16, compare with float32.",
    ),
    Alert(
        "lag_kl",
        LAG_KL,
        "The behaviour policy is far from the current policy",
        "Much of the data falls outside the clip range. Run fewer actors, lower learner.max_policy_lag or learner.lr, "
        "or set learner.objective to decoupled.",
    ),
)


def alert_rules() -> Json:
    """Return the rules in the format of Grafana's file provisioning; each rule covers all runs."""
    return {
        "apiVersion": 1,
        "groups": [
            {"orgId": 1, "name": "tamiyo", "folder": FOLDER, "interval": EVERY, "rules": [_rule(a) for a in ALERTS]}
        ],
    }


def _rule(alert: Alert) -> Json:
    return {
        "uid": f"tamiyo-{alert.metric}".replace("_", "-"),
        "title": alert.title,
        "condition": "exceeded",
        "data": [_query("above", condition(alert)), _threshold("exceeded", "above")],
        "dashboardUid": uid(TRAINING),
        "panelId": panel_id(TRAINING, alert.metric),
        "noDataState": "OK",  # no run reports the metric
        "execErrState": "Error",
        "for": LASTING,
        "annotations": {
            # Grafana expands a dollar sign in these files as an environment variable.
            "summary": f"{alert.metric} of run {{{{ .Labels.run }}}} is too large",
            "description": f"{METRICS[alert.metric].help}. {alert.advice}",
        },
        "labels": {"service": "tamiyo"},
        "isPaused": False,
    }


def condition(alert: Alert) -> str:
    """PromQL that is 1 for each run whose metric is above the limit, else 0."""
    limit = f"on (run) {_of_runs(alert.limit)}" if isinstance(alert.limit, str) else f"{alert.limit:g}"
    return f"{_of_runs(alert.metric)} > bool {limit}"


def _of_runs(name: str) -> str:
    return f'max by (run) ({{__name__=~"(ray_)?{prometheus_name(METRICS[name])}"}})'


def _query(ref: str, expr: str) -> Json:
    model = {"refId": ref, "expr": expr, "instant": True, "range": False, "editorMode": "code"}
    return {
        "refId": ref,
        "datasourceUid": SOURCE,
        "relativeTimeRange": {"from": 300, "to": 0},
        "model": model,
    }


def _threshold(ref: str, of: str) -> Json:
    """A threshold expression, which Grafana evaluates itself."""
    model = {
        "refId": ref,
        "type": "threshold",
        "expression": of,
        "datasource": {"type": "__expr__", "uid": "__expr__"},
        "conditions": [{"evaluator": {"type": "gt", "params": [0]}}],
    }
    return {
        "refId": ref,
        "datasourceUid": "__expr__",
        "relativeTimeRange": {"from": 0, "to": 0},
        "model": model,
    }
