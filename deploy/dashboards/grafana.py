"""Grafana's JSON of a board."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deploy.dashboards.boards import BOARDS, Board, Panel, View
from deploy.dashboards.queries import Query, queries

Json = dict[str, Any]
SCHEMA = 38  # Grafana 10; newer ones migrate it
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT, ACROSS = 8, 8, 24  # in grid cells
UNITS = {"s": "s", "ratio": "percentunit", "1": "short", "version": "none", "versions": "none", "updates": "none"}


def dashboard(board: Board) -> Json:
    return {
        "uid": uid(board),
        "title": board.title,
        "description": "Made by `tamiyo dashboards` from actors/metrics/registry.py: change it there.",
        "tags": ["tamiyo"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables(board)},
        "annotations": {"list": []},
        "links": [_link_to_others()],
        "panels": list(_panels(board)),
    }


def uid(board: Board) -> str:
    return f"tamiyo-{board.name}"


def panel_id(board: Board, metric: str) -> int:
    """Of the panel that shows a metric first."""
    titles = [panel.title for panels in board.rows.values() for panel in panels if metric in panel.metrics]
    return next(int(p["id"]) for p in _panels(board) if p["title"] == titles[0])


def dashboards() -> dict[str, Json]:
    """By the name of the file."""
    return {board.name: dashboard(board) for board in BOARDS}


def _variables(board: Board) -> list[Json]:
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "refresh": 1}
    if not board.of_runs:
        return [source]
    query = 'label_values({__name__=~"(ray_)?tamiyo_.+"}, run)'
    run = {
        "name": "run",
        "label": "Run",
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": "run"},
        "refresh": 2,
        "sort": 2,
        "includeAll": False,
        "multi": False,
    }
    return [source, run]


def _link_to_others() -> Json:
    return {
        "type": "dashboards",
        "title": "Tamiyo",
        "tags": ["tamiyo"],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }


def _panels(board: Board) -> Iterator[Json]:
    number, y = 0, 0
    for title, panels in board.rows.items():
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": ACROSS, "h": 1},
        }
        y += 1
        for i, panel in enumerate(panels):
            number += 1
            place = {"x": i * WIDTH % ACROSS, "y": y + i * WIDTH // ACROSS * HEIGHT, "w": WIDTH, "h": HEIGHT}
            yield _panel(panel, board.of_runs) | {"id": number, "gridPos": place}
        y += -(-len(panels) * WIDTH // ACROSS) * HEIGHT


def _panel(panel: Panel, of_runs: bool) -> Json:
    asked = queries(panel, of_runs)
    return {
        "title": panel.title,
        "description": _description(asked),
        "datasource": SOURCE,
        "targets": [_target(ref, query, panel.view) for ref, query in zip("ABCDEF", asked, strict=False)],
        **_shape(panel, asked),
    }


def _description(asked: list[Query]) -> str:
    metrics = {q.metric.name: q.metric for q in asked}.values()
    if len(metrics) == 1:
        return "".join(f"{m.help} [{m.unit}]." for m in metrics)
    return "\n".join(f"- {m.name}: {m.help} [{m.unit}]." for m in metrics)


def _target(ref: str, query: Query, view: View) -> Json:
    return {
        "refId": ref,
        "datasource": SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend,
        "range": True,
        "instant": False,
        "editorMode": "code",
        "format": "heatmap" if view is View.HEATMAP else "time_series",
    }


def _shape(panel: Panel, asked: list[Query]) -> Json:
    """Type, fields and options of a panel."""
    unit = _unit(asked[0].unit)
    if panel.view is View.HEATMAP:
        colour = {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "fill": "dark-orange"}
        options: Json = {
            "calculate": False,
            "cellGap": 1,
            "color": colour,
            "yAxis": {"axisPlacement": "left", "unit": unit},
            "legend": {"show": True},
            "tooltip": {"show": True, "yHistogram": True},
        }
        return {"type": "heatmap", "fieldConfig": {"defaults": {"unit": "short"}, "overrides": []}, "options": options}
    if panel.view is View.STATES:
        shown = {
            "0": {"text": " ", "color": "transparent", "index": 0},
            "1": {"text": "yes", "color": "orange", "index": 1},
        }
        fields: Json = {"defaults": {"unit": unit, "mappings": [{"type": "value", "options": shown}]}, "overrides": []}
        options = {"mergeValues": True, "showValue": "never", "alignValue": "left", "rowHeight": 0.9, **_LEGEND}
        return {"type": "state-timeline", "fieldConfig": fields, "options": options}
    stacked = panel.view is View.STACKED
    custom: Json = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 40 if stacked else 0,
        "showPoints": "auto",
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
    }
    overrides = [_right(ref, q) for ref, q in zip("ABCDEF", asked, strict=False) if q.unit != asked[0].unit]
    if panel.view is View.BAND:
        overrides += _band(*(q.legend for q in asked[1:]))
    defaults: Json = {"unit": unit, "custom": custom}
    if panel.limit is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.limit}]
        custom["thresholdsStyle"] = {"mode": "line"}
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    fields = {"defaults": defaults, "overrides": overrides}
    return {"type": "timeseries", "fieldConfig": fields, "options": _LEGEND}


_LEGEND: Json = {
    "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
    "tooltip": {"mode": "multi", "sort": "none"},
}


def _right(ref: str, query: Query) -> Json:
    """A series of another unit has an axis of its own."""
    properties = [{"id": "unit", "value": _unit(query.unit)}, {"id": "custom.axisPlacement", "value": "right"}]
    return {"matcher": {"id": "byFrameRefID", "options": ref}, "properties": properties}


def _band(low: str, high: str) -> list[Json]:
    thin, fill = {"id": "custom.lineWidth", "value": 0}, {"id": "custom.fillOpacity", "value": 20}
    return [
        {"matcher": {"id": "byName", "options": low}, "properties": [thin]},
        {
            "matcher": {"id": "byName", "options": high},
            "properties": [thin, fill, {"id": "custom.fillBelowTo", "value": low}],
        },
    ]


def _unit(unit: str) -> str:
    """As Grafana names it, or as a text behind the number."""
    return UNITS.get(unit, f"suffix: {unit}")
