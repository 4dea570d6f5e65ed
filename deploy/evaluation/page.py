"""The output of an evaluation: tables for the terminal, and a Markdown page with its figures and the tables as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from deploy.evaluation.pictures import write_figures
from deploy.evaluation.players import BEST, BLIND, BUILT, CHOOSER, FIXED, GAP, POLICY
from deploy.evaluation.results import EQUAL, SWEEP, Results, plain
from deploy.evaluation.targets import targets
from deploy.evaluation.text_table import TextTable, span

SHOWN = (POLICY, BLIND, CHOOSER, BEST, FIXED, GAP, BUILT.format(2), EQUAL, SWEEP)
"""Players in the table of families."""
NOTES = """\
J is the gain in validation accuracy over the untrained host, in points, minus the price times the rent, which is how
often the parameters have doubled, averaged over the horizon. Intervals (95%) are over policies, families and episodes.
Test rows are read once, at the end of an episode. FLOPs are those of training, relative to never growing (geometric
mean).
"""


def write_page(results: Results, folder: Path) -> Path:
    """Write `results.md`, its figures and `results.json`. Returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = [f"![{f.title}]({f.name}.png)\n\n*{f.caption}*\n" for f in write_figures(results, folder)]
    tables = [table.markdown() for table in (*tables_of(results), families_table(results))]
    data = {"targets": plain(targets(results)), **results.as_dict()}
    (folder / "results.json").write_text(json.dumps(data, indent=1) + "\n")
    page = folder / "results.md"
    page.write_text("\n".join(["# Results\n", NOTES, *tables, *figures]), encoding="utf-8")
    return page


def tables_of(results: Results) -> list[TextTable]:
    """Return the table of players, and that of the targets if a policy was played."""
    found = targets(results)
    rows = [(t.name, t.measured, t.goal, "met" if t.met else "missed") for t in found]
    return [players_table(results)] + ([TextTable("Targets", ("target", "measured", "goal", ""), rows)] if rows else [])


def players_table(results: Results) -> TextTable:
    prices = [f"at {w:g}" for w in results.prices]
    head = ("player", "n", "J over never", *prices, "policy's over it", "P(better)", "test", "doublings", "FLOPs")
    rows = [
        (
            line.name,
            str(line.policies),
            span(line.over_never),
            *(f"{line.by_price[w]:+.2f}" for w in results.prices),
            span(line.policy_over),
            "" if line.improvement is None else f"{line.improvement.mean:.2f}",
            "" if line.test_accuracy is None else f"{line.test_accuracy:.1f}",
            f"{line.doublings:.2f}",
            f"x{line.training_flops:.2f}",
        )
        for line in results.lines
    ]
    return TextTable("Players", head, rows)


def families_table(results: Results) -> TextTable:
    shown = [name for name in SHOWN if name in results.rows]
    rows = [
        (
            line.family,
            *(f"{line.over_never[name]:+.2f}" for name in shown),
            span(line.policy_over_best),
            "" if line.bare is None else f"{100 * line.bare:.0f}%",
        )
        for line in results.family_lines
    ]
    return TextTable("J over never growing by family", ("family", *shown, "policy over best", "ends bare"), rows)
