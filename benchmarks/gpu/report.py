"""What the steps came to: one JSON, and lines for people, failures first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu.runner import Outcome


def write(path: Path, machine: dict[str, Any], outcomes: Sequence[Outcome], complete: bool) -> None:
    """Write the JSON, after every step: whatever ends the program leaves what was measured."""
    content = {
        "complete": complete,
        "failed": [o.name for o in outcomes if o.bad],
        "machine": machine,
        "targets": [target | {"step": o.name} for o in outcomes for target in o.targets],
        "steps": [asdict(o) for o in outcomes],
    }
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, indent=1) + "\n")
    partial.replace(path)


def line(outcome: Outcome) -> str:
    """Return one line about a step."""
    took = f" in {outcome.seconds:.0f} of {outcome.limit_s:.0f} s" if outcome.limit_s else ""
    return f"{outcome.name}: {outcome.status}{took}{': ' * bool(outcome.why)}{outcome.why}"


def summary(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the lines at the end: what failed, missed targets, what was left out, and targets that were met."""
    lines: list[str] = []
    for outcome in filter(lambda o: o.bad, outcomes):
        lines += ["", f"FAILED {line(outcome)}", f"  {outcome.command}", *(f"  | {text}" for text in outcome.tail)]
        lines += [f"  {r['test']}: {r['message']}" for r in outcome.rows if r.get("outcome") in ("failure", "error")]
    targets = [target for o in outcomes for target in o.targets]
    missed, met = ([t for t in targets if t["met"] is kind] for kind in (False, True))
    lines += _part("Targets missed", [f"{t['name']}: {t['value']:,.2f}, goal {t['goal']:,.2f}" for t in missed])
    lines += _part("Left out", _counted([text for o in outcomes for text in _without(o)]))
    lines += _part("Targets met", [f"{t['name']}: {t['value']:,.2f}, goal {t['goal']:,.2f}" for t in met])
    return [*lines, "", *(line(o) for o in outcomes)]


def _part(title: str, lines: Sequence[str]) -> list[str]:
    return ["", title, *(f"  {text}" for text in lines)] if lines else []


def _without(outcome: Outcome) -> list[str]:
    if outcome.status == "left out":
        return [f"{outcome.name}: {outcome.why}"]
    return [text.split(": ", 1)[-1] if "::" in text else text for text in outcome.left_out]  # why, without the test


def _counted(lines: Sequence[str]) -> list[str]:
    """Return equal lines once, with their number."""
    return [text if (n := lines.count(text)) == 1 else f"{text} ({n} times)" for text in dict.fromkeys(lines)]
