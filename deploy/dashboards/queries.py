"""The PromQL queries of a panel. They match metrics exported by Ray and by separate processes."""

from __future__ import annotations

from typing import NamedTuple

from actors.metrics.registry import FAMILIES, SERVE, Metric, lookup, prometheus_name
from deploy.dashboards.boards import Panel, View

RATE = "$__rate_interval"
QUANTILES = (0.5, 0.9, 0.99)


class Query(NamedTuple):
    """One PromQL query of a panel."""

    expr: str
    legend: str
    metric: Metric
    unit: str  # unit of the result: the rate of a counter has another unit than the counter


def metric_of(name: str) -> Metric:
    """Return the metric for a name used in panels. Raises `KeyError` if it is not declared."""
    if name in SERVE:
        return SERVE[name]
    return FAMILIES[name.removesuffix("/")] if name.endswith("/") else lookup(name)


def queries(panel: Panel, of_runs: bool) -> list[Query]:
    """Return the queries of a panel; `of_runs` restricts them to the selected run."""
    return [q for name in panel.metrics for q in _of_metric(name, panel, of_runs)]


def _of_metric(name: str, panel: Panel, of_runs: bool) -> list[Query]:
    metric, member = metric_of(name), name.partition("/")[2]
    matchers = ['run="$run"'] if of_runs else []
    if metric.label and member:
        matchers.append(f'{metric.label}="{member}"')
    elif panel.without:
        matchers.append(f'{metric.label}!="{panel.without}"')
    keys = [key for key in (*metric.labels, panel.by) if key]
    labels = " ".join(f"{{{{{key}}}}}" for key in keys)
    legend = member or " ".join(filter(None, (metric.name if len(panel.metrics) > 1 else "", labels))) or metric.name

    def of(suffix: str) -> str:
        return _selector(metric, suffix, matchers)

    if panel.view is View.QUANTILES:
        rates = f"sum by (le) (rate({of('_bucket')}[{RATE}]))"
        return [Query(f"histogram_quantile({q}, {rates})", f"{q:.0%}", metric, metric.unit) for q in QUANTILES]
    if panel.view is View.HEATMAP:
        return [Query(f"sum by (le) (increase({of('_bucket')}[{RATE}]))", "{{le}}", metric, metric.unit)]
    if metric.kind == "counter" and panel.view is not View.TOTALS:
        return [Query(_by("sum", keys, f"rate({of('_total')}[{RATE}])"), legend, metric, f"{metric.unit}/s")]
    if metric.kind == "counter":
        total = f"round({_by('sum', keys, of('_total'))})"  # Ray exports a zero counter as a tiny positive number
        return [Query(total, legend, metric, metric.unit)]
    # Only gauges that several processes report are summed.
    function = "sum" if panel.view is View.TOTALS else "max"
    return [Query(_by(function, keys, of("")), legend, metric, metric.unit)]


def _selector(metric: Metric, suffix: str, matchers: list[str]) -> str:
    name = f'__name__=~"(ray_)?{prometheus_name(metric)}{suffix}"'
    return "{" + ", ".join([name, *matchers]) + "}"


def _by(function: str, keys: list[str], of: str) -> str:
    """Aggregate the series of all processes."""
    return f"{function} by ({', '.join(keys)}) ({of})" if keys else f"{function}({of})"
