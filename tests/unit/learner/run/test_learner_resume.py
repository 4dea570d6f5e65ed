"""A learner that starts again from its checkpoint: a new generation, no version twice, no episode twice."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from actors.errors import UserError
from actors.transport.base import Fenced
from tests.support.learning.toy_learner import ToyProducer, lines, make_learner
from tests.support.stores import Store


def test_a_resumed_learner_opens_a_new_generation_and_continues(store: Store, tmp_path: Path) -> None:
    first = make_learner(tmp_path, store, updates=2)
    producer = ToyProducer(store)
    first.run(producer)
    second = make_learner(tmp_path, store, resume=True, updates=5)
    weights = {name: t.clone() for name, t in first.network.state_dict().items()}
    assert all(torch.equal(t, weights[name]) for name, t in second.network.state_dict().items())
    progress = second.run(producer)
    ledger = second.transport.ledger()
    ledger.check()
    assert (progress.update, progress.generation) == (5, 2)
    assert progress.version == 2 + 1 + 3  # versions never repeat: the new generation starts beyond the head
    assert ledger.trained == progress.episodes_trained == 20
    assert [line["update"] for line in lines(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    with pytest.raises(Fenced):
        first.transport.take(1, 0.0)


@pytest.mark.parametrize("call", ["link", "mkdir", "fsync"])
def test_a_run_folder_that_turns_read_only_ends_the_run_with_one_line(
    store: Store, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, producer = make_learner(tmp_path, store, updates=9), ToyProducer(store)
    write = getattr(os, call)

    def refuse(*args: object, **options: object) -> object:
        if call == "mkdir" or learner.progress.update == 2:
            raise OSError(errno.EROFS, "Read-only file system", str(args[0]))
        return write(*args, **options)

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(UserError, match=r"cannot write to the run folder .*Read-only file system") as caught:
        learner.run(producer)
    assert "\n" not in str(caught.value)
