"""A run has one learner: another that is started while the first is at work is refused."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from actors.errors import UserError
from deploy.launch.ownership import refuse_second_learner
from tests.support.learning.toy_learner import make_learner
from tests.support.stores import Store


def test_a_learner_at_work_is_noticed_and_one_that_ended_is_not(store: Store, tmp_path: Path) -> None:
    newcomer = store()
    refuse_second_learner(newcomer, "mine")  # a new run
    stop = threading.Event()
    learner = make_learner(tmp_path, store)
    thread = threading.Thread(target=learner.run, args=(stop.is_set,))
    thread.start()
    try:
        while newcomer.head() < 0:
            assert thread.is_alive()
        with pytest.raises(UserError, match="a learner is training run 'mine' already"):
            refuse_second_learner(newcomer, "mine")
    finally:
        stop.set()
        thread.join()
    refuse_second_learner(newcomer, "mine")
