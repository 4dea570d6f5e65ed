"""The output of an evaluation: tables for the terminal, and a Markdown page with its figures and the tables as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from actors.types.actions import Op
from deploy.evaluation.pictures import FIGURES, write_figures
from deploy.evaluation.players import BEST, BLIND, BUILT, CHOOSER, NO_PRUNE, POLICY, TRIAL
from deploy.evaluation.results import EQUAL, SWEEP, Results, plain
from deploy.evaluation.targets import targets
from deploy.evaluation.text_table import TextTable, signed, span
from deploy.report.charts import titled

SHOWN = (POLICY, BLIND, CHOOSER, BEST, TRIAL, BUILT.format(2), EQUAL, SWEEP)
"""Players in the table of families."""
ACT = (POLICY, NO_PRUNE, BLIND, BEST, TRIAL, CHOOSER)
"""Players in the table of ops."""
NOTES = """\
J is the gain in validation accuracy over the untrained host, in points, on rows that no player sees, minus p times the
doublings of the parameters of the model that is kept, minus c times the doublings of the training FLOPs. Intervals
(95%) are over policies, families and episodes. Test rows are read once, at the end of an episode.
"""


def write_page(results: Mapping[str, Results], folder: Path) -> Path:
    """Write `results.md`, its figures and `results.json`. Returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    write_figures(results, folder)
    titles = {draw.__name__: titled(draw) for draw in FIGURES}
    figures = [f"![{title}]({name}.png)\n\n*{caption}*\n" for name, (title, caption) in titles.items()]
    tables = [*tables_of(results), *(ops_table(*r) for r in results.items())]
    tables += [families_table(*r) for r in results.items()]
    data = {"targets": plain(targets(results)), **{name: part.as_dict() for name, part in results.items()}}
    (folder / "results.json").write_text(json.dumps(data, indent=1) + "\n")
    page = folder / "results.md"
    page.write_text("\n".join(["# Results\n", NOTES, *(t.markdown() for t in tables), *figures]), encoding="utf-8")
    return page


def tables_of(results: Mapping[str, Results]) -> list[TextTable]:
    """Return the tables of players, and that of the targets if a policy was played."""
    rows = [(t.name, t.condition, t.measured, t.goal, t.verdict) for t in targets(results)]
    found = [players_table(*r) for r in results.items()]
    return found + ([TextTable("Targets", ("target", "at", "measured", "goal", ""), rows)] if rows else [])


def players_table(condition: str, results: Results) -> TextTable:
    prices = [f"p = {w.doubling:g}" for w in results.prices]
    head = ("player", "n", "J over never", *prices, "policy's over it", "test", "D", "C", "FLOPs", "bare")
    rows = [
        (
            line.name,
            str(line.policies),
            span(line.over_never),
            *(signed(points) for points in line.by_price.values()),
            span(line.policy_over),
            "" if line.test_accuracy is None else f"{line.test_accuracy:.1f}",
            f"{line.doublings:.2f}",
            f"{line.compute:.2f}",
            f"x{line.flops:.1f}",
            f"{100 * line.bare:.0f}%",
        )
        for line in results.lines
    ]
    return TextTable(f"Players at {condition}", head, rows)


def ops_table(condition: str, results: Results) -> TextTable:
    """What players do: their ops, as shares of all epochs, and what becomes of an episode's seeds."""
    rows = []
    for line in (name for name in ACT if name in results.episodes):
        counts = results.mean_values(line, "ops").mean((0, 1, 2))
        joined = results.mean_values(line, "joined").mean()
        shares = (f"{share:.1%}" for share in counts / counts.sum())
        rows.append((line, *shares, *(f"{n:.2f}" for n in (counts[Op.GERMINATE], joined, counts[Op.PRUNE]))))
    head = ("player", *(op.name for op in Op), "germinated", "joined", "pruned")
    return TextTable(f"Ops at {condition}", head, rows)


def families_table(condition: str, results: Results) -> TextTable:
    shown = [name for name in SHOWN if name in results.episodes]
    rows = [
        (
            line.family,
            *(signed(line.over_never[name]) for name in shown),
            span(line.policy_over_best),
            "" if line.bare is None else f"{100 * line.bare:.0f}%",
        )
        for line in results.family_lines
    ]
    title = f"J over never growing by family at {condition}"
    return TextTable(title, ("family", *shown, "policy over best", "ends bare"), rows)
