"""The policy in the package: it is small, found by its name, and plays episodes of any number of slots."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from actors.config import EnvConfig
from actors.policy.saved import TRAINED, find_checkpoint, read_weights
from actors.slots.objective import Prices
from deploy.evaluation.play import EpisodeResult, play
from deploy.evaluation.suite import protocol
from learner.run.checkpoint import load_network

CONFIG = EnvConfig(slots=3, column_slots=2, horizon_epochs=15, inner_steps=8, device="cpu")  # slots as in training


def test_it_is_found_by_its_name_and_below_two_megabytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert TRAINED.stat().st_size < 2_000_000
    assert TRAINED.with_name("MODEL_CARD.md").is_file()
    assert find_checkpoint(Path("trained")) == TRAINED
    assert read_weights(Path("trained")).version > 0
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trained").write_bytes(b"a file of the user's")
    assert find_checkpoint(Path("trained")) == Path("trained")


def test_loading_it_leaves_the_users_random_numbers_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    load_network("trained")
    assert torch.equal(torch.rand(3), expected)


def played(config: EnvConfig, width: int) -> list[EpisodeResult]:
    policy = load_network("trained", config.total_slots)
    own = replace(protocol(config, Prices(2.0, 0.0)), host_width=width)
    return play(lambda spaces: policy, own, 5, range(6), read_test=False)


def test_it_grows_narrow_hosts_more_often_than_wide_ones() -> None:
    narrow, wide = (np.mean([row.doublings > 0 for row in played(CONFIG, w)]) for w in (2, 32))
    assert narrow > wide


@pytest.mark.parametrize("column_slots", [1, 2])
def test_it_plays_with_fewer_slots_than_it_was_trained_with(column_slots: int) -> None:
    config = replace(CONFIG, slots=1, column_slots=column_slots)
    assert not any(row.illegal for width in (2, 32) for row in played(config, width))


def test_it_lets_a_column_join_in_a_model_with_two_slots(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It learned with five. In this example, columns contribute 10 points and more."""
    monkeypatch.setenv("TAMIYO_POLICY", "trained")
    runpy.run_path("examples/grow_your_model.py")
    assert int(capsys.readouterr().out.split()[-2]) > 2000  # parameters at the end; the model has 714
