"""Grafana dashboards: the files are valid and show every registered metric."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.alerting import Rule
from grafana_foundation_sdk.models.dashboard import Dashboard

from actors.metrics.registry import FAMILIES, METRICS, SERVE, Metric
from learner.metric_warnings import LAG_KL
from learner.run.run_metrics import SEED_HOST_FIGURES

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy/grafana/dashboards"
PROVISIONING = ROOT / "deploy/grafana/provisioning"
NAMES = ("endpoint", "environment", "service", "training")
DECLARED = {f"tamiyo_{m.name.replace('/', '_')}": m for m in (*METRICS.values(), *FAMILIES.values(), *SERVE.values())}
SUFFIX = {"counter": "_total", "histogram": "_bucket", "gauge": ""}


def committed(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.json").read_text())


def shown(name: str) -> list[dict[str, Any]]:
    """The panels outside of collapsed rows."""
    return [p for p in committed(name)["panels"] if p["type"] != "row"]


def panels() -> Iterator[dict[str, Any]]:
    for name in NAMES:
        yield from shown(name)
        yield from (p for row in committed(name)["panels"] for p in row.get("panels", ()))


def asked(panel: dict[str, Any]) -> list[Metric]:
    """The declared metrics in a panel's queries, each looked up by its exported name with the suffix of its kind."""
    found = []
    for target in panel["targets"]:
        (name,) = re.findall(r'__name__=~"\(ray_\)\?(\w+)"', target["expr"])
        (metric,) = [m for base, m in DECLARED.items() if base + SUFFIX[m.kind] == name]
        found.append(metric)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_dashboards_round_trip_through_grafanas_sdk(name: str) -> None:
    """The SDK drops unknown and misplaced fields, so nothing may be missing after the round trip."""
    register_default_plugins()
    board = committed(name)
    back = json.loads(JSONEncoder().encode(Dashboard.from_json(board)))
    assert lost(board, back) == []
    board["panels"][1]["fieldConfig"]["defaults"]["units"] = board["panels"][1]["fieldConfig"]["defaults"].pop("unit")
    misspelled = json.loads(JSONEncoder().encode(Dashboard.from_json(board)))
    assert lost(board, misspelled) == ["panels/1/fieldConfig/defaults/units"]


def lost(given: Any, back: Any, at: str = "") -> list[str]:
    """The paths of values in `given` that are missing or different in `back`."""
    if isinstance(given, dict) and isinstance(back, dict):
        return [line for k, v in given.items() for line in lost(v, back.get(k, KeyError), f"{at}/{k}".strip("/"))]
    if isinstance(given, list) and isinstance(back, list) and len(given) == len(back):
        return [line for i, (v, w) in enumerate(zip(given, back, strict=True)) for line in lost(v, w, f"{at}/{i}")]
    return [] if given == back else [at]


def test_every_declared_metric_is_on_a_dashboard() -> None:
    assert {m.name for p in panels() for m in asked(p)} == {m.name for m in DECLARED.values()}


def test_every_panel_has_a_title_and_the_registered_units_and_descriptions() -> None:
    units = {"s": "s", "ratio": "percentunit", "1": "short"} | dict.fromkeys(("versions", "version", "updates"), "none")
    for panel in panels():
        assert panel["title"].strip()
        first, *_ = metrics = asked(panel)
        for metric in metrics:
            assert f"{metric.help} [{metric.unit}]" in panel["description"], panel["title"]
        options = panel["options"]["yAxis"] if panel["type"] == "heatmap" else panel["fieldConfig"]["defaults"]
        rate = "/s" if "rate(" in panel["targets"][0]["expr"] and first.kind == "counter" else ""
        unit = first.unit + rate
        assert options["unit"] == units.get(unit, f"suffix: {unit}"), panel["title"]


def test_in_a_gymnasium_run_only_the_dashboard_of_growth_and_collapsed_rows_are_empty() -> None:
    some = {"same_seed_episodes", "prior_kl", "prior_coef", *(name for name in METRICS if name.startswith("memory/"))}
    grown = {*SEED_HOST_FIGURES, "panic_share", "stage_share", "choice_share"}
    for name in ("training", "service"):
        empty = [p["title"] for p in shown(name) if {m.name for m in asked(p)} <= some | grown]
        assert not empty, name
    assert {m.name for p in shown("environment") for m in asked(p)} == grown


def rules() -> list[dict[str, Any]]:
    (path,) = (PROVISIONING / "alerting").iterdir()
    (group,) = json.loads(path.read_text())["groups"]
    (board_provider,) = yaml.safe_load((PROVISIONING / "dashboards/tamiyo.yml").read_text())["providers"]
    assert group["folder"] == board_provider["folder"]
    return group["rules"]


def test_alerts_query_the_provisioned_source_and_link_to_the_panel_of_their_metric() -> None:
    (source,) = yaml.safe_load((PROVISIONING / "datasources/prometheus.yml").read_text())["datasources"]
    watched = {}
    for rule in rules():
        # Only the linked panel and the query are lost in Grafana's SDK: file provisioning alone has them.
        back = json.loads(JSONEncoder().encode(Rule.from_json(rule)))
        assert {at.partition("/model")[0] for at in lost(rule, back)} <= {"dashboardUid", "panelId", "data/0", "data/1"}
        query, threshold = rule["data"]
        assert query["datasourceUid"] == source["uid"]
        assert threshold["model"]["expression"] == query["refId"]
        assert rule["condition"] == threshold["refId"]
        shown = re.findall(r'__name__=~"\(ray_\)\?(\w+)"', query["model"]["expr"])
        boards = [committed(name) for name in NAMES]
        (board,) = [b for b in boards if b["uid"] == rule["dashboardUid"]]
        (panel,) = [p for p in board["panels"] if p["id"] == rule["panelId"]]
        assert set(shown) <= {f"tamiyo_{m.name}" for m in asked(panel)}
        watched[shown[0]] = (shown[1:], query["model"]["expr"].split()[-1], panel["fieldConfig"]["defaults"])
    assert watched.keys() == {"tamiyo_kl", "tamiyo_ratio_error", "tamiyo_lag_kl"}
    assert watched["tamiyo_kl"][0] == ["tamiyo_kl_limit"]
    assert watched["tamiyo_ratio_error"][0] == ["tamiyo_ratio_error_limit"]
    _, limit, fields = watched["tamiyo_lag_kl"]
    assert float(limit) == LAG_KL == fields["thresholds"]["steps"][1]["value"]
