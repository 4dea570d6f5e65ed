"""The figures of the README are those of the kept records."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NUMBER = r"(\d+\.\d)"


def test_the_readme_says_what_the_record_of_the_evaluation_says() -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    results = json.loads((ROOT / "results/sweep/results.json").read_text())
    lines = {line["name"]: line for line in results["c = p/4"]["lines"]}
    policy, sweep = lines["policy"], lines["full sweep"]
    n, interval = NUMBER, rf"\({NUMBER} to {NUMBER}\)"
    said = re.search(
        rf"policies end {n} points above never growing \(95% interval {n} to {n}\) with {n} times its parameters, "
        rf"{n} {interval} above the best of 65 tuned rules \({n} times\) and "
        rf"{n} {interval} above the best width in hindsight \({n} times\), whose search takes (\d+) times",
        text,
    )
    rule = lines["best single rule"]
    known = [*policy["over_never"].values(), 2 ** policy["doublings"], *rule["policy_over"].values()]
    known += [2 ** rule["doublings"], *sweep["policy_over"].values(), 2 ** sweep["doublings"]]
    assert [float(s) for s in said.groups()[:-1]] == [round(v, 1) for v in known]
    assert int(said.groups()[-1]) == round(sweep["flops"] / policy["flops"])
    free = {line["name"]: line["policy_over"] for line in results["c = 0"]["lines"]}
    assert f"that search {-free['full sweep']['mean']:.1f} ahead" in text
    assert free["best single rule"]["low"] < 0 < free["best single rule"]["high"]  # level


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("ResNet, glyphs", rf"Test accuracy: {NUMBER}% .* not {NUMBER}%; built four times as wide, {NUMBER}% with"),
        ("GRU, signals", rf"from {NUMBER}% test accuracy to {NUMBER}% .* four times as wide it has {NUMBER}%"),
    ],
)
def test_the_readme_says_what_the_page_about_practical_models_says(model: str, said: str) -> None:
    page = (ROOT / "docs/practical.md").read_text()
    row = re.search(rf"^\| {model} \|.*$", page, re.MULTILINE)
    figures = re.search(said, " ".join((ROOT / "README.md").read_text().split()))
    assert row is not None
    assert figures is not None
    assert all(re.search(rf"\b{re.escape(figure)} ", row.group()) for figure in figures.groups())
