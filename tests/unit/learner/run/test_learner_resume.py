"""A learner that starts again from its checkpoint: a new generation, no version twice, no episode twice."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from actors.errors import UserError
from tests.support.learning.toy_learner import ToyProducer, make_learner
from tests.support.stores import Store


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
