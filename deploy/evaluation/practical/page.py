"""The output of the suite `practical`: tables, figures, `practical.json`, and the tables within a page of the docs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from actors.errors import UserError
from deploy.evaluation.practical.figures import COMPUTE, FRONT, write_figures
from deploy.evaluation.practical.results import NEVER, PracticalResults
from deploy.evaluation.practical.targets import targets
from deploy.evaluation.results import plain
from deploy.evaluation.text_table import TextTable, signed

START, END = "<!-- measured -->\n", "<!-- end of measured -->"


def write_results(results: Mapping[str, PracticalResults], folder: Path, page: Path | None) -> list[TextTable]:
    """Write everything into a folder, and the tables and figures into a page that has a place for them. Returns the
    tables. Raises `UserError` for a page that has none."""
    found = tables(results)
    text = "\n".join(table.markdown() for table in found)
    content = {"targets": plain(targets(results)), **{n: part.as_dict() for n, part in results.items()}}
    (folder / "practical.json").write_text(json.dumps(content, indent=1) + "\n")
    (folder / "practical.md").write_text(text, encoding="utf-8")
    write_figures(results, folder)
    if page is not None:
        before, start, rest = page.read_text(encoding="utf-8").partition(START)
        _, end, after = rest.partition(END)
        if not end:
            raise UserError(f"{page} has no place for tables: write the lines {START.strip()} and {END} into it")
        figures = f"![Metric and parameters](results/{FRONT})\n\n![J and FLOPs](results/{COMPUTE})\n\n"
        lower = text.replace("## ", "### ")  # the page has a heading above them
        page.write_text(f"{before}{start}\n{lower}\n{figures}{end}{after}", encoding="utf-8")
        write_figures(results, page.parent / "results")
    return found


def tables(results: Mapping[str, PracticalResults]) -> list[TextTable]:
    """Return the targets and, for each price of compute, the models and the players."""
    rows = [(t.name, t.measured, t.goal, t.verdict, f"{t.trainings} of {t.wanted}") for t in targets(results)]
    found = [TextTable("Targets", ("target", "measured", "goal", "", "trainings"), rows)] if rows else []
    for part in results.values():
        at = f"at p = {part.prices.doubling:g} and c = {part.prices.compute_doubling:g}"
        found += [players_table(part, at), models_table(part, at)]
    return found


def players_table(results: PracticalResults, at: str) -> TextTable:
    """Means over the trainings that a player played; those that have no cells yet are not in it."""
    rows, wanted = [], len(list(results.trainings()))
    for name in results.names:
        if found := results.outcomes(name):
            over, doublings, flops, params, seconds = np.mean(
                [(o.over_never, o.doublings, o.flops, o.params, o.seconds) for o in found], axis=0
            )
            worst = min(o.over_never for o in found)
            used = f"{seconds:,.0f}" if np.isfinite(seconds) else ""
            sizes = (f"{doublings:.2f}", f"{params:,.0f}", f"{flops:.2f}", used)
            rows.append((name, signed(over), signed(worst), *sizes, f"{len(found)} of {wanted}"))
    head = ("player", "J over never", "worst", "doublings", "parameters", "FLOPs, never = 1", "seconds", "trainings")
    return TextTable(f"Players {at}", head, rows)


def models_table(results: PracticalResults, at: str) -> TextTable:
    """Test metrics and, in brackets, J over never growing; means over the seeds that a player played."""

    def cell(player: str, model: str, width: int, seeds: int) -> str:
        found = results.outcomes(player, model, width)
        if not found:
            return ""
        test, over = np.mean([(o.test, o.over_never) for o in found], axis=0)
        text = f"{test:.1f}" if player == NEVER else f"{test:.1f} ({over:+.1f})"
        return text if len(found) == seeds else f"{text}, {len(found)} seeds"

    rows = []
    for model in results.models:
        for width in results.widths[model.name]:
            if bare := results.outcomes(NEVER, model.name, width):
                cells = [cell(player, model.name, width, len(bare)) for player in results.names]
                rows.append((model.label, str(width), f"{bare[0].params:,}", str(len(bare)), *cells))
    head = ("model", "width", "parameters", "seeds", *results.names)
    return TextTable(f"Test metric in percent, and J over never growing, {at}", head, rows)
