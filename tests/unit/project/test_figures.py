"""The figures of the README, and of the page about practical models, are those of the kept records."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from math import log2
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
NUMBER = r"(\d+\.\d)"
RULE = "trial:quad+double@0-2,alpha=0.7"


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


def test_the_page_says_what_giving_up_and_hindsight_are_worth() -> None:
    page = " ".join((ROOT / "docs/practical.md").read_text().split())
    runs = {}
    for file in (ROOT / "results/practical/cells").glob("*/*.json"):
        cell, run = (record := json.loads(file.read_text()))["cell"], record["run"]
        if cell["policy"] != "policy.safetensors":  # others do not depend on prices
            runs[cell["model"], cell["width"], cell["seed"], cell["policy"]] = run

    def worth(run: dict[str, Any], base: dict[str, Any], compute: float) -> float:
        return run["test"] - base["test"] - log2(run["final_params"] / base["final_params"]) - 0.25 * compute

    with_giving_up, without, saved, gained = [], [], [], []
    for (model, width, seed, policy), rule in runs.items():
        base, wide, wider = (runs.get((model, k * width, seed, "never")) for k in (1, 2, 4))
        if policy == f"{RULE},surrender=0.5":
            whole = runs[model, width, seed, RULE]
            assert (rule["test"], rule["final_params"]) == (whole["test"], whole["final_params"])  # the same columns
            with_giving_up.append(worth(rule, base, rule["compute"]))
            without.append(worth(whole, base, whole["compute"]))
            saved.append((2 ** rule["compute"], 2 ** whole["compute"]))
        elif policy == RULE:
            pruned = {line.split()[-1] for line in rule["decisions"] if " PRUNE column " in line}
            kept = [run for slot, run in (("1", wider), ("2", wide)) if slot not in pruned]
            best = max(0.0, worth(rule, base, log2(1 + sum(run["flops"] / base["flops"] for run in kept))))
            gained.append(best - worth(rule, base, rule["compute"]))
    assert (len(saved), len(gained)) == (10, 45)
    flops, whole_flops = map(sum, zip(*saved, strict=True))
    assert f"ten trainings (seed 0 at the two smaller widths) with {flops / whole_flops:.2f} of its FLOPs" in page
    said = f"it is {mean(with_giving_up):.2f} points of J above never growing there, the rule without it "
    assert f"{said}{mean(without):.2f}" in page
    assert f"Over the rule it would be {mean(gained):.1f} [" in page


@pytest.mark.parametrize("compute_price", [0.0, 0.25])
def test_the_page_about_practical_models_says_what_the_kept_runs_say(compute_price: float) -> None:
    """J is the test metric less a point for each doubling of the parameters, and the price of training compute."""
    runs = defaultdict(dict)  # (model, width, policy) -> seed -> run
    for file in (ROOT / "results/practical/cells").glob("*/*.json"):
        cell, run = (record := json.loads(file.read_text()))["cell"], record["run"]
        if cell["policy"] != "policy.safetensors" or cell["prices"] == [1.0, compute_price]:
            runs[cell["model"], cell["width"], cell["policy"]][cell["seed"]] = run
    page = (ROOT / "docs/practical.md").read_text()
    page = page.split(f"J over never growing, at p = 1 and c = {compute_price:g}\n\n")[1].split("\n\n")[0]
    names = {"ResNet, glyphs": "resnet_glyphs", "transformer, characters": "char_transformer"}
    names |= {"MLP, clarity of diamonds": "mlp_clarity", "MLP, price of diamonds": "mlp_price"}
    names |= {"GRU, signals": "gru_signals"}
    rows = [[c.strip() for c in row.split("|")[1:-1]] for row in page.splitlines() if row.startswith("| ")][2:]
    assert len(rows) == 15
    for title, text, _, seeds, never, *said in rows:
        model, width = names[title], int(text)
        base = runs[model, width, "never"]
        assert sorted(base) == list(range(int(seeds)))
        assert f"{mean(run['test'] for run in base.values()):.1f}" == never
        players = [(2 * width, "never"), (4 * width, "never"), (width, RULE), (width, "policy.safetensors")]
        for figures, player in zip(said, players, strict=False):  # sweep and halving follow
            over = []
            for seed, run in runs[model, *player].items():
                doublings = log2(run["final_params"] / base[seed]["final_params"])
                compute = log2(run["flops"] / base[seed]["flops"]) if player[1] == "never" else run["compute"]
                over.append(run["test"] - base[seed]["test"] - doublings - compute_price * compute)
            assert len(over) == len(base)
            assert figures == f"{mean(run['test'] for run in runs[model, *player].values()):.1f} ({mean(over):+.1f})"
