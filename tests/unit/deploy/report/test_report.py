"""The report of a synthetic run: all figures are present, the page is self-contained, the headline is correct."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.errors import UserError
from actors.types.actions import Op
from deploy.config.schema import PRESETS
from deploy.config.yaml import to_yaml
from deploy.report import charts
from deploy.report.episodes import BINS, MOST, summarize
from deploy.report.findings import findings
from deploy.report.numbers import number
from deploy.report.page import FIGURES, headline, write_report
from deploy.report.run_folder import RunFolder, read_run

HEADS = ("op", "slot", "blueprint", "blend", "alpha_target", "alpha_speed")


def write_run(path: Path, updates: int = 60, advantage: float = 9.0, extras: bool = True) -> Path:
    rng = np.random.default_rng(4)
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.yaml").write_text(to_yaml(PRESETS["quick"]))
    rows: list[dict[str, Any]] = []
    episodes: list[dict[str, Any]] = []
    for update in range(1, updates + 1):
        progress = 1 - math.exp(-3 * update / 60)
        returns = rng.normal(4 + advantage * progress, 9, size=32)
        for i, value in enumerate(returns):
            task = ("digits", "spirals", "wine")[i % 3]
            episodes.append(
                {"update": update, "episode_id": f"r/0/0/{update * 32 + i}", "task_id": task, "seed": update * 32 + i,
                 "policy_version": update - 1, "return": float(value), "steps": 25, "end_reason": "horizon",
                 "final_accuracy": 60.0 + float(value), "growth_ratio": 1.0}
            )  # fmt: skip
        logits = np.array([1 + 1.5 * progress, 1, 0.2 - progress, 0.8 - 1.5 * progress, 0.3, 0.6]) + rng.normal(
            0, 0.06, 6
        )
        shares = np.exp(logits) / np.exp(logits).sum()
        rows.append(
            {"update": update, "elapsed_s": update * 2.3, "return_mean": float(returns.mean()), "return_std": 9.0,
             "episodes_per_s": 13.9 + rng.normal(0, 0.7), "policy_lag_mean": 0.8 + rng.random() * 0.4,
             "policy_lag_max": int(rng.integers(1, 4)), "queue_depth": int(rng.integers(0, 40)),
             **{f"op/{op.name}": float(s) for op, s in zip(Op, shares, strict=True)},
             **{f"entropy/{h}": 0.98 - (0.05 + 0.09 * k) * progress + rng.normal(0, 0.01) for k, h in enumerate(HEADS)}}
        )  # fmt: skip
    (path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (path / "episodes.jsonl").write_text("".join(json.dumps(e) + "\n" for e in episodes))
    if extras:
        (path / "references.json").write_text(json.dumps(references(rng, advantage)))
        (path / "timeline.json").write_text(json.dumps(timeline()))
    return path


def references(rng: np.random.Generator, advantage: float) -> dict[str, Any]:
    tasks = [("digits", "spirals", "wine")[i % 3] for i in range(48)]
    base = np.array([{"digits": 2.0, "spirals": 9.0, "wine": 5.0}[t] for t in tasks]) + rng.normal(0, 5, 48)
    learned, random = base + advantage + rng.normal(0, 4, 48), base - 2 + rng.normal(0, 4, 48)
    return {"seeds": list(range(48)), "tasks": tasks, "learned": learned.tolist(), "random": random.tolist(),
            "never_grow": (base + 3).tolist()}  # fmt: skip


def timeline() -> dict[str, Any]:
    grown = ["GERMINATED"] * 2 + ["TRAINING"] * 5 + ["BLENDING"] * 4 + ["HOLDING"] * 2 + ["FOSSILIZED"] * 10
    pruned = ["DORMANT"] * 6 + ["GERMINATED"] + ["TRAINING"] * 4 + ["BLENDING"] * 3 + ["PRUNED"] + ["EMBARGOED"] * 2
    stages = [["DORMANT"] * 2 + grown, pruned + ["RESETTING"] + ["DORMANT"] * 7, ["DORMANT"] * 25]
    alphas = [[0.0] * 9 + [0.2, 0.4, 0.6, 0.7] + [0.7] * 12, [0.0] * 11 + [0.17, 0.33, 0.5] + [0.0] * 11, [0.0] * 25]
    active = ("GERMINATED", "TRAINING", "BLENDING", "HOLDING", "FOSSILIZED")
    blueprints = [
        [name if s in active else "" for s in lane]
        for lane, name in zip(stages, ("mlp_wide", "gated", ""), strict=True)
    ]
    ops, op_slots = ["WAIT"] * 25, [-1] * 25
    for epoch, op, slot in (
        (2, "GERMINATE", 0), (4, "ADVANCE", 0), (9, "ADVANCE", 0), (15, "FOSSILIZE", 0),
        (6, "GERMINATE", 1), (7, "ADVANCE", 1), (11, "ADVANCE", 1), (12, "SET_ALPHA_TARGET", 1), (14, "PRUNE", 1),
    ):  # fmt: skip
        ops[epoch], op_slots[epoch] = op, slot
    never = [52 + 14 * (1 - math.exp(-t / 5)) for t in range(26)]
    accuracy = [n + max(0.0, 22 * (1 - math.exp(-(t - 9) / 5))) if t > 9 else n for t, n in enumerate(never)]
    growth = [0.0, 0.0] + [0.8] * 4 + [1.3] * 8 + [0.8] * 11
    return {"task": "spirals", "seed": 1234, "policy_version": 58, "horizon": 25, "slots": 3, "return": 19.4,
            "accuracy": accuracy, "never_grow_accuracy": never, "ops": ops, "op_slots": op_slots, "stages": stages,
            "alphas": alphas, "blueprints": blueprints, "growth_ratio": growth,
            "lanes": ["slot 0", "slot 1", "column 2"], "host": "host width 6, price 1 per doubling"}  # fmt: skip


def test_the_page_contains_every_figure_and_no_external_resources(tmp_path: Path) -> None:
    run = write_run(tmp_path / "made-up")
    page = write_report(run).read_text()
    assert page.count("<svg") == len(FIGURES)
    for spec in FIGURES:
        assert (run / "report" / f"{spec.name}.png").stat().st_size > 5_000
        assert spec.title in page
    assert not re.search(r"https?:|//[a-z]+\.|@import|<script|<link|src=", page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', page)) <= set(ids)


def test_the_report_says_what_was_learned_for_narrow_and_ample_hosts(tmp_path: Path) -> None:
    """Made-up episodes: half of the last ones on narrow hosts grow; the earlier ones would say the opposite."""
    run = write_run(tmp_path / "made-up", updates=2)
    rows: list[dict[str, Any]] = []
    last = {"return": 9.0, "task_id": "spirals", "update": 2, "steps": 25, "rent_weight": 1.0}
    for i in range(200):
        growth = float(i % 2) if i < 160 else 8.0 * (i % 4 == 0)
        rows.append(last | {"host_width": 2.0 + 8.0 * (i % 2), "growth_ratio": growth})
    (run / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    grew = "it grew in 50% of the episodes, to 3.0 times the host's size on average"
    assert findings(read_run(run)) == [
        f"On narrow hosts (2 units or channels) {grew}; on ample ones (10) it grew nothing.",
        "That earned +9.0 points on narrow hosts and +9.0 on ample ones.",
    ]  # the price does not vary
    assert "What the policy learned" in write_report(run).read_text()


def test_the_report_of_a_gymnasium_run_does_not_mention_seed_hosts(tmp_path: Path) -> None:
    run = write_run(tmp_path / "cart", updates=12)
    general = PRESETS["general"]
    config = dataclasses.replace(general, gym=dataclasses.replace(general.gym, id="CartPole-v1"))
    (run / "config.yaml").write_text(to_yaml(config))
    (run / "timeline.json").unlink()
    played = json.loads((run / "references.json").read_text())
    del played["never_grow"]
    (run / "references.json").write_text(json.dumps(played | {"tasks": ["CartPole-v1"] * 48}))
    page = write_report(run).read_text()
    assert page.count("<svg") == 5
    visible = re.sub(r"<pre>.*?</pre>|<svg.*?</svg>|<style>.*?</style>", "", page, flags=re.DOTALL)
    for word in ("points", "never grow", "slot", "accuracy", "Figures without data"):
        assert word not in visible, word
    assert "on CartPole-v1" in visible
    assert re.match(r"Learned beats random by \d+\.\d \[", headline(run))


@pytest.mark.parametrize("stops", [0, 2])
def test_the_report_shows_what_ran_and_how_often_the_kl_stopped_it(tmp_path: Path, stops: int) -> None:
    run = write_run(tmp_path / "run", updates=12)
    own = {"lr": 1e-3, "kl_limit": 0.09}
    rows = [json.loads(line) | own for line in (run / "metrics.jsonl").read_text().splitlines()]
    for n, row in enumerate(rows):
        row |= {"kl_stop": float(n < stops), "update_epochs_done": 1.5 if n < stops else 4.0}
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = write_report(run).read_text()
    for title, value in (("learning rate", "0.001"), ("passes over a batch", "4"), ("chunks", "whole episodes")):
        assert f"<dt>{title}</dt><dd>{value}</dd>" in page
    said = (
        "The KL stop ended 2 of 12 updates early, because the KL was above 0.09; they made 1.5 of 4 passes on average."
    )
    assert (said in page) == bool(stops)
    assert ("KL stop" in page) == bool(stops)


def write_rows(path: Path, metrics: list[dict[str, Any]], episodes: list[dict[str, Any]]) -> RunFolder:
    path.mkdir()
    general = PRESETS["general"]
    config = dataclasses.replace(general, gym=dataclasses.replace(general.gym, id="CartPole-v1"))
    (path / "config.yaml").write_text(to_yaml(config))
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    (path / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in episodes))
    return read_run(path)


def curve(run: RunFolder) -> list[float]:
    """The points of the learning curve that are drawn."""
    figure = charts.learning_curve(run)
    assert figure is not None
    y = np.array(figure.axes[0].lines[-1].get_ydata(), dtype=np.float64)
    return y[np.isfinite(y)].tolist()


def test_memory_does_not_grow_with_the_run_and_long_runs_keep_their_curve() -> None:
    """The returns of 12,000 updates rise to 12."""

    def rows(updates: int) -> Iterator[dict[str, Any]]:
        for update in range(1, updates + 1):
            common = {"update": update, "steps": 25, "host_width": 4.0, "rent_weight": 1.0, "growth_ratio": 0.0}
            yield common | {"task_id": "wine", "return": update / 1000}

    run = summarize(rows(12_000), 12_000)
    assert (run.count, run.whole, run.steps) == (12_000, 12_000, 300_000)
    assert len(run.last_fifth) == 2_400
    assert len(run.newest) == MOST
    assert max(map(len, run.moments.values())) == BINS
    x = np.arange(1.0, 12_001.0)
    mean, low, high = run.rolling_returns(x, 2_000)
    assert mean[-1] == pytest.approx(11.0, abs=0.05)  # of the last 2,000 updates
    assert low[-1] < mean[-1] < high[-1]


@pytest.mark.parametrize("ends", [False, True])
def test_a_constant_reward_gives_a_flat_curve_also_where_few_or_no_episodes_end(ends: bool, tmp_path: Path) -> None:
    """Segments report what their episode has gained so far, which rises with its length."""
    row = {"task_id": "CartPole-v1", "steps": 64, "seed": 1}
    metrics: list[dict[str, Any]] = [{"update": u, "elapsed_s": u, "reward_mean": 0.0012} for u in range(1, 31)]
    episodes = [row | {"update": u, "return": 64.0 * u, "end_reason": "cut"} for u in range(1, 31)]
    if ends:
        metrics[19]["return_mean"] = 1290.0
        episodes.insert(20, row | {"update": 20, "return": 1290.0, "end_reason": "environment"})
    run = write_rows(tmp_path / "run", metrics, episodes)
    assert curve(run) == pytest.approx([1290.0] * 5 if ends else [0.0012] * 30)
    page = write_report(run.path).read_text()
    assert ("last mean return" in page) == ends
    assert ("+0.0012" in page) != ends


def test_a_figure_draws_the_commonest_of_many_series(tmp_path: Path) -> None:
    """With 10,000 choices it took minutes."""
    rng = np.random.default_rng(0)
    shares = {f"op/{k}": float(rng.random() / 5_000) for k in range(10_000)} | {"op/77": 0.4}
    heads = {f"entropy/action{k}": 0.5 for k in range(300)}
    run = write_rows(tmp_path / "run", [{"update": u} | shares | heads for u in range(1, 4)], [])
    began = time.monotonic()
    for draw, kind in ((charts.op_shares, "collections"), (charts.head_entropies, "lines")):
        figure = draw(run)
        assert figure is not None
        (ax,) = figure.axes
        assert len(getattr(ax, kind)) == charts.MOST_LINES
        assert {"77", "others"} <= {text.get_text() for text in ax.texts} or kind == "lines"
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("value", "scale", "text"),
    [
        (12345.67, None, "+12345.7"), (-1.0, None, "-1.0"), (0.0, None, "+0.0"), (0.5, None, "+0.50"),
        (0.00123, None, "+0.0012"), (-0.05, None, "-0.050"), (2e-7, None, "+2.0e-07"), (0.012, 30.0, "+0.0"),
        (0.1, 0.02, "+0.100"), (-0.0001, 0.02, "+0.000"),
    ],
)  # fmt: skip
def test_small_numbers_keep_two_digits(value: float, scale: float | None, text: str) -> None:
    assert number(value, scale) == text


def test_a_small_difference_is_readable(tmp_path: Path) -> None:
    run = write_run(tmp_path / "small", updates=2)
    random = [0.001 * (i % 2) for i in range(48)]
    played = {"tasks": ["CartPole-v1"] * 48, "random": random, "learned": [r + 0.0031 for r in random]}
    (run / "references.json").write_text(json.dumps(played))
    assert headline(run).startswith("Learned beats random by 0.0031 points [0.0031, 0.0031]")
    assert '<td class="number">+0.0031</td>' in write_report(run).read_text()


@pytest.mark.parametrize("updates", [0, 1, 2])
def test_short_and_interrupted_runs_are_reported(tmp_path: Path, updates: int) -> None:
    page = write_report(write_run(tmp_path / "short", updates=updates, extras=False)).read_text()
    assert "ended before the baselines were played" in page
    assert "Figures without data" in page
    assert page.count("<svg") == (0 if updates == 0 else 4)


def test_an_incomplete_last_line_is_ignored_and_a_damaged_line_is_an_error(tmp_path: Path) -> None:
    run = write_run(tmp_path / "torn", updates=3, extras=False)
    metrics = run / "metrics.jsonl"
    metrics.write_text(metrics.read_text() + '{"update": 4, "retu')
    write_report(run)
    metrics.write_text('{"upd\n' + metrics.read_text())
    with pytest.raises(UserError, match="line 1 is damaged"):
        write_report(run)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("metrics.jsonl", "5\n{}\n"),
        ("metrics.jsonl", '{"update": {}}\n{}\n'),
        ("metrics.jsonl", "[" * 100_000 + "\n{}\n"),
        ("episodes.jsonl", '{"update": 1}\n{}\n'),
        ("references.json", '{"learned": [1], "tasks": ["a", "b"], "random": [2]}'),
        ("references.json", "[5]"),
        ("timeline.json", '{"return": 1, "task": 5}'),
        ("timeline.json", '{"a":' * 50_000),
    ],
    ids=lambda text: text[:40],
)
def test_a_file_with_any_content_is_an_error_of_one_line(tmp_path: Path, file: str, text: str) -> None:
    run = write_run(tmp_path / "odd", updates=3)
    (run / file).write_text(text)
    with pytest.raises(UserError, match="damaged") as caught:
        write_report(run)
    assert "\n" not in str(caught.value)


def test_the_headline_states_better_worse_or_indistinguishable(tmp_path: Path) -> None:
    better = headline(write_run(tmp_path / "better", updates=2, advantage=9.0))
    assert re.match(r"Learned beats random by \d+\.\d points \[\d+\.\d, \d+\.\d\] \(95%, n=48 paired seeds\)\.", better)
    even = headline(write_run(tmp_path / "even", updates=2, advantage=-2.0))
    assert even.startswith("Learned does not beat random: ")
    assert "includes zero" in even
    assert headline(write_run(tmp_path / "worse", updates=2, advantage=-12.0)).startswith(
        "Learned is worse than random by "
    )


def test_an_episode_that_ended_early_and_a_single_reference(tmp_path: Path) -> None:
    run = write_run(tmp_path / "early", updates=2)
    episode = timeline()
    for name in ("ops", "op_slots", "growth_ratio"):
        episode[name] = episode[name][:7]
    for name in ("stages", "alphas", "blueprints"):
        episode[name] = [lane[:7] for lane in episode[name]]
    (run / "timeline.json").write_text(json.dumps({**episode, "accuracy": episode["accuracy"][:8]}))
    one = {"seeds": [1], "tasks": ["wine"], "learned": [1.0], "random": [0.0], "never_grow": [0.5]}
    (run / "references.json").write_text(json.dumps(one))
    assert write_report(run).read_text().count("<svg") == len(FIGURES)
    (run / "references.json").write_text(json.dumps({name: [] for name in one}))
    assert write_report(run).read_text().count("<svg") == len(FIGURES) - 1


def test_names_are_escaped_in_html(tmp_path: Path) -> None:
    run = write_run(tmp_path / "escaped", updates=1, extras=False)
    (run / "config.yaml").write_text("run: {name: '<script>alert(1)</script>'}")
    assert "<script" not in write_report(run).read_text()


def test_a_folder_without_a_run_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"run folder .* does not exist"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"is not a run folder \(it has no metrics\.jsonl\)"):
        write_report(tmp_path)
