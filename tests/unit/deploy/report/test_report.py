"""The report of a synthetic run: all figures are present, the page is self-contained, the headline is correct."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.config import GymConfig
from actors.env.episode.timeline import Timeline
from actors.errors import UserError
from actors.slots.objective import Standing
from actors.slots.stage import Slot, Stage
from actors.types.actions import Op
from deploy.config.schema import PRESETS, Config
from deploy.config.yaml import to_yaml
from deploy.report import charts
from deploy.report.page import headline, write_report
from deploy.report.run_folder import RunFolder, read_run

HEADS = ("op", "slot", "blueprint", "blend", "alpha_target", "alpha_speed")
TASKS = ("digits", "spirals", "wine")
CART_POLE = dataclasses.replace(PRESETS["general"], gym=GymConfig(id="CartPole-v1"))
Rows = list[dict[str, Any]]


def write(path: Path, config: Config, metrics: Rows, episodes: Rows) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.yaml").write_text(to_yaml(config))
    for name, rows in (("metrics", metrics), ("episodes", episodes)):
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_run(path: Path, updates: int = 60, advantage: float = 9.0, extras: bool = True) -> Path:
    rng, rows = np.random.default_rng(4), list[dict[str, Any]]()
    episodes: Rows = [
        {"update": u, "task_id": TASKS[i % 3], "return": rng.normal(4 + advantage * u / 60, 9), "steps": 25}
        for u in range(1, updates + 1)
        for i in range(32)
    ]
    for update in range(1, updates + 1):
        shares = rng.dirichlet(np.ones(len(Op)))
        rows.append(
            {"update": update, "elapsed_s": update * 2.3, "return_mean": 4.0, "episodes_per_s": 13.9,
             "policy_lag_mean": 0.8, "policy_lag_max": 3, "queue_depth": update,
             **{f"op/{op.name}": float(s) for op, s in zip(Op, shares, strict=True)},
             **{f"entropy/{head}": 0.98 - 0.01 * update for head in HEADS}}
        )  # fmt: skip
    write(path, PRESETS["quick"], rows, episodes)
    if extras:
        (path / "references.json").write_text(json.dumps(references(rng, advantage)))
        (path / "timeline.json").write_text(json.dumps(example()))
    return path


def references(rng: np.random.Generator, advantage: float) -> dict[str, Any]:
    base = np.tile([2.0, 9.0, 5.0], 16) + rng.normal(0, 5, 48)
    learned, random = base + advantage + rng.normal(0, 4, 48), base - 2 + rng.normal(0, 4, 48)
    return {"seeds": list(range(48)), "tasks": [*TASKS] * 16, "learned": learned.tolist(), "random": random.tolist(),
            "never_grow": (base + 3).tolist()}  # fmt: skip


def example() -> dict[str, Any]:
    """An episode in which one of two slots is grown and the other one pruned."""
    timeline = Timeline("spirals", 1234, 3, ["STREAM", "STREAM"], [52.0], 6, 1.0, 0.0)
    grown, pruned = Slot(), Slot()
    for op, slot, stage in (("GERMINATE", 0, Stage.TRAINING), ("PRUNE", 1, Stage.PRUNED), ("WAIT", -1, Stage.PRUNED)):
        grown.stage, grown.blueprint, pruned.stage = Stage.TRAINING, 0, stage
        timeline.record(op, slot, [grown, pruned], ["mlp_wide", "gated"], Standing(53.0, 0.8, 1.1), 1.0)
    return timeline.as_dict() | {"policy_version": 58, "never_grow_accuracy": [52.0, 52.5, 53.0, 53.5]}


def page(run: Path) -> str:
    return write_report(run, pictures=True)[1].read_text()


def said_of(run: Path) -> str:
    return " ".join(headline(read_run(run)))


def test_the_page_contains_every_figure_and_no_external_resources(tmp_path: Path) -> None:
    """And names of the user are escaped."""
    run = write_run(tmp_path / "made-up", updates=12)
    with (run / "config.yaml").open("a") as file:
        file.write("# <script>alert(1)</script>")
    text = page(run)
    assert text.count("<svg") == 2 * len(charts.FIGURES)  # for pages and for phones
    assert not re.search(r"#1d232b(?!; --)|#ffffff", re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL))  # dark
    for draw in charts.FIGURES:
        assert (run / "report" / f"{draw.__name__}.png").stat().st_size > 5_000
        assert draw.__doc__.partition("\n")[0] in text
    assert not re.search(r"https?:|@import|<script|<link|<img", text)
    assert "KL stop" not in text  # which ended no update
    assert "last mean return" not in text  # which includes what hosts learn by themselves
    assert "J over never growing" in text
    assert re.search(r"points \[\d+\.\d,\u00a0\d+\.\d\] \(", text)  # a line never ends within an interval


def test_the_report_of_a_gymnasium_run_mentions_stopped_updates_and_no_seed_hosts(tmp_path: Path) -> None:
    run = write_run(tmp_path / "cart", updates=12)
    rows = [json.loads(line) | {"kl_limit": 0.09} for line in (run / "metrics.jsonl").read_text().splitlines()]
    for n, row in enumerate(rows):
        row |= {"kl_stop": float(n < 2), "update_epochs_done": 1.5 if n < 2 else 10.0}
    write(run, CART_POLE, rows, [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()])
    (run / "timeline.json").unlink()
    played = json.loads((run / "references.json").read_text()) | {"tasks": ["CartPole-v1"] * 48}
    (run / "references.json").write_text(json.dumps({name: played[name] for name in played if name != "never_grow"}))
    text = page(run)
    assert text.count("<svg") == 2 * 5
    visible = re.sub(r"<pre>.*?</pre>|<svg.*?</svg>|<style>.*?</style>", "", text, flags=re.DOTALL)
    assert not re.search("points|never grow|slot|accuracy", visible)
    assert "on CartPole-v1" in visible
    assert "ended 2 of 12 updates early, because the KL was above 0.09; they made 1.5 of 10 passes" in visible
    assert re.match(r"Learned beats random by \d+\.\d \[", said_of(run))


def curve(run: RunFolder) -> list[float]:
    figure = charts.learning_curve(run)
    y = np.array(figure.axes[0].lines[-1].get_ydata(), dtype=np.float64)
    return y[np.isfinite(y)].tolist()


@pytest.mark.parametrize("ends", [False, True])
def test_a_constant_reward_gives_a_flat_curve_also_where_few_or_no_episodes_end(ends: bool, tmp_path: Path) -> None:
    """Segments report what their episode has gained so far, which rises with its length."""
    row = {"task_id": "CartPole-v1", "steps": 64, "seed": 1}
    metrics: Rows = [{"update": u, "elapsed_s": u, "reward_mean": 0.0012} for u in range(1, 31)]
    episodes = [row | {"update": u, "return": 64.0 * u, "end_reason": "cut"} for u in range(1, 31)]
    if ends:
        metrics[19]["return_mean"] = 1290.0
        episodes.insert(20, row | {"update": 20, "return": 1290.0, "end_reason": "environment"})
    run = read_run(write(tmp_path / "run", CART_POLE, metrics, episodes))
    assert curve(run) == pytest.approx([1290.0] * 5 if ends else [0.0012] * 30)
    text = page(run.path)
    assert ("last mean return" in text) == ends
    assert ("+0.0012" in text) != ends


def test_a_figure_draws_the_commonest_of_many_series(tmp_path: Path) -> None:
    """With 10,000 choices it took minutes."""
    rng = np.random.default_rng(0)
    shares = {f"op/{k}": float(rng.random() / 5_000) for k in range(10_000)} | {"op/77": 0.4}
    heads = {f"entropy/action{k}": 0.5 for k in range(300)}
    run = read_run(write(tmp_path / "run", CART_POLE, [{"update": u} | shares | heads for u in range(1, 4)], []))
    began = time.process_time()
    (shown,), (entropies,) = (draw(run).axes for draw in (charts.op_shares, charts.head_entropies))
    assert len(shown.collections) == len(entropies.lines) == charts.MOST_LINES
    assert {"77", "others"} <= {text.get_text() for text in shown.get_legend().get_texts()}
    assert time.process_time() - began < 5


@pytest.mark.parametrize("updates", [0, 1, 2])
def test_short_and_interrupted_runs_are_reported(tmp_path: Path, updates: int) -> None:
    """And an incomplete last line is ignored."""
    run = write_run(tmp_path / "short", updates=updates, extras=False)
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"update": 4, "retu')
    said, path = write_report(run)
    assert "ended before the baselines were played" in said
    assert path.read_text().count("<svg") == (8 if updates > 1 else 0)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("metrics.jsonl", '{"upd\n{"update": 1}\n'),
        ("metrics.jsonl", "5\n{}\n"),
        ("metrics.jsonl", "[" * 100_000 + "\n{}\n"),
        ("episodes.jsonl", '{"update": 1}\n{}\n'),
        ("references.json", '{"learned": [1], "tasks": ["a", "b"], "random": [2]}'),
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
    better, even, worse = (
        said_of(write_run(tmp_path / str(advantage), updates=2, advantage=advantage)) for advantage in (9, -2, -12)
    )
    assert re.search(r"Learned beats random by \d+\.\d points \[\d+\.\d, \d+\.\d\] \(95%, n=48 paired seeds\)", better)
    assert even.startswith("Learned is worse than never grow by ")
    assert re.search("Learned does not beat random: .*includes zero", even)
    assert "Learned is worse than random by " in worse


@pytest.mark.parametrize("count", [0, 1])
def test_a_single_reference_and_none(tmp_path: Path, count: int) -> None:
    run = write_run(tmp_path / "early", updates=2)
    one: dict[str, list[Any]] = {
        "seeds": [1],
        "tasks": ["wine"],
        "learned": [1.0],
        "random": [0.0],
        "never_grow": [0.5],
    }
    (run / "references.json").write_text(json.dumps({name: values[:count] for name, values in one.items()}))
    assert (charts.task_returns(read_run(run)) is not None) == count
