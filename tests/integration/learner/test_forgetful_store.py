"""A store that forgets a single call of the learner, as in a power failure or a failover: nothing is trained twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.transport.redis import Transport
from learner.run.checkpoint import load_checkpoint
from tests.support.learning.toy_learner import ToyProducer, lines, make_learner
from tests.support.stores import Store


class Forgetful:
    """Makes the store forget the nth call of `name` that had an effect, in which the caller sees nothing unusual."""

    def __init__(self, store: Store, transport: Transport, name: str, nth: int) -> None:
        self.store, self.original, self.left = store, getattr(transport, name), nth
        setattr(transport, name, self)

    def __call__(self, *args: Any, **options: Any) -> Any:
        restore = self.store.freeze()
        result = self.original(*args, **options)
        self.left -= bool(result)
        if result and not self.left:
            restore()
        return result


@pytest.mark.parametrize("call", ["take", "ack"])
@pytest.mark.parametrize("settings", [{}, {"checkpoint_every": 2}], ids=str)
def test_a_forgotten_call_does_not_train_episodes_twice(
    store: Store, tmp_path: Path, call: str, settings: dict[str, Any]
) -> None:
    transport = store()
    learner = make_learner(tmp_path, transport, updates=8, **settings)
    forgetful = Forgetful(store, transport, call, 2)
    learner.run(ToyProducer(store()))
    assert forgetful.left <= 0
    ids = [row["episode_id"] for row in lines(tmp_path / "episodes.jsonl")]
    ledger = transport.ledger()
    ledger.check()
    assert len(ids) == len(set(ids)) == 32
    assert ledger.trained == load_checkpoint(tmp_path).progress.episodes_trained == 32
