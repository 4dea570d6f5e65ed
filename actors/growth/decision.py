"""`Decision`: one entry of the decision log: what the policy asked for, what was done, and why."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from actors.errors import UserError


@dataclass(frozen=True)
class Decision:
    """One decision of the policy and its effect."""

    epoch: int  # epochs trained before the decision
    op: str  # the op that was applied
    slot: str  # "" for WAIT
    blueprint: str  # in that slot, "" where it is empty
    asked: str  # what the policy asked for; "" if it did not answer
    reason: str  # why something else was applied; "" otherwise
    loss: float
    accuracy: float | None  # percent
    added_params: int
    doublings: float  # of the parameters of the model that would be exported
    compute_doublings: float  # of the FLOPs of the whole training, if nothing else grew
    stages: list[str]  # by slot, at the start of the next epoch
    alphas: list[float]
    blueprints: list[str]
    slots: list[str]
    policy_version: int  # -1 if the policy did not answer
    value: float | None  # the value that the policy estimated
    contributions: list[float | None]  # by slot, before the decision, percentage points; None if unknown
    gradient_health: list[float | None]  # by slot, before the decision: the share of minibatches with healthy gradients


def append_to_log(path: str | Path, decision: Decision) -> None:
    """Append a decision to a log file, as a JSON line."""
    with Path(path).open("a") as file:
        file.write(json.dumps(asdict(decision)) + "\n")


def read_log(path: Path) -> list[Decision]:
    """Return the decisions of a log file, oldest first. Raises `UserError` if it is damaged."""
    try:
        records: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
        return [Decision(**record) for record in records]
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is not a log of decisions ({error})") from error
