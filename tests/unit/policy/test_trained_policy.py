"""The policy in the package: it is small, found by its name, and plays episodes of any number of slots."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from actors.config import EnvConfig
from actors.policy.saved import TRAINED, find_checkpoint, read_weights
from deploy.evaluation.play import play
from deploy.evaluation.suite import protocol
from learner.run.checkpoint import load_policy


def test_it_is_found_by_its_name_and_below_two_megabytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert TRAINED.stat().st_size < 2_000_000
    assert TRAINED.with_name("MODEL_CARD.md").is_file()
    assert find_checkpoint(Path("trained")) == TRAINED
    assert read_weights(Path("trained")).version > 0
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trained").write_bytes(b"a file of the user's")
    assert find_checkpoint(Path("trained")) == Path("trained")


@pytest.mark.parametrize(("slots", "column_slots"), [(1, 1), (3, 2), (1, 2)])
def test_it_grows_narrow_hosts_more_often_than_wide_ones(slots: int, column_slots: int) -> None:
    config = EnvConfig(slots=slots, column_slots=column_slots, horizon_epochs=15, inner_steps=8, device="cpu")
    policy = load_policy("trained", config.total_slots)
    grown = []
    for width in (2, 32):
        own = protocol(config, rent_weight=2.0)
        own = replace(own, host_width=width)
        rows = play(lambda spaces: policy, own, 5, range(6), read_test=False)
        assert not any(row.illegal for row in rows)
        grown.append(np.mean([row.final_params > row.host_params for row in rows]))
    assert (slots, column_slots) != (3, 2) or grown[0] > grown[1]  # it was trained with these slots
