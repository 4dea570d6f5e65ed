"""The lines of a run's logs: copied up to an update, and written before the checkpoint of their update."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from learner.run.metrics_log import FILES, MetricsLog, copy_lines
from tests.support.learning.toy_learner import lines


def write(folder: Path, updates: list[int], end: str = "") -> None:
    folder.mkdir(exist_ok=True)
    for name in FILES:
        rows = [json.dumps({"update": u, "pad": "x" * (9000 if u % 2 else 3)}) + "\n" for u in updates]
        (folder / name).write_text("".join(rows) + end)


@pytest.mark.parametrize("end", ["", '{"update": 1}', '{"update": 1, "torn', "\0\0\0"])
@pytest.mark.parametrize("last", [0, 2, 9])
def test_lines_up_to_an_update_are_copied_and_incomplete_ones_are_not(tmp_path: Path, last: int, end: str) -> None:
    updates = [1, 1, 2, 2, 2, 3, 4, 5, 5]
    write(tmp_path / "old", updates, end)
    (tmp_path / "new").mkdir()
    copy_lines(tmp_path / "old", tmp_path / "new", last)
    for name in FILES:
        assert [row["update"] for row in lines(tmp_path / "new" / name)] == [u for u in updates if u <= last]


def test_missing_and_empty_logs_are_copied_as_empty_ones(tmp_path: Path) -> None:
    (tmp_path / FILES[0]).touch()
    (tmp_path / "new").mkdir()
    copy_lines(tmp_path, tmp_path / "new", 3)
    assert [(tmp_path / "new" / name).read_bytes() for name in FILES] == [b"", b""]


def test_the_first_cards_of_tensorboard_are_returns_then_losses_and_accounts_come_last(tmp_path: Path) -> None:
    names = ("actor_ledger/produced", "entropy/op", "clipped_values", "loss_value", "reward_mean", "return_mean", "lr")
    (tmp_path / "logs").mkdir()
    with closing(MetricsLog(tmp_path, tmp_path / "logs", 0)) as log:
        log.write(1, dict.fromkeys(names, 1.0))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    cards = [tag.partition("/")[2] for tag in sorted(events.Tags()["scalars"])]
    assert cards[:3] == ["return_mean", "reward_mean", "loss_value"]
    assert cards[-2:] == ["entropy/op", "actor_ledger/produced"]
