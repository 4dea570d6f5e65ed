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


def check(folder: Path, transport: Transport, batches: int) -> None:
    ids = [row["episode_id"] for row in lines(folder / "episodes.jsonl")]
    ledger = transport.ledger()
    ledger.check()
    assert len(ids) == len(set(ids)) == 4 * batches
    assert ledger.trained == load_checkpoint(folder).progress.episodes_trained == 4 * batches


@pytest.mark.parametrize("call", ["take", "ack"])
@pytest.mark.parametrize(
    "settings",
    [{}, pytest.param({"checkpoint_every": 3}, marks=pytest.mark.long), {"checkpoint_every": 2, "ack": "after_step"}],
    ids=str,
)
def test_a_forgotten_call_does_not_train_episodes_twice(
    store: Store, tmp_path: Path, call: str, settings: dict[str, Any]
) -> None:
    transport = store()
    learner = make_learner(tmp_path, transport, updates=8, **settings)
    forgetful = Forgetful(store, transport, call, 2)
    learner.run(ToyProducer(store()))
    assert forgetful.left <= 0
    check(tmp_path, transport, 8)


def test_a_restarted_learner_does_not_train_what_its_checkpoint_holds(store: Store, tmp_path: Path) -> None:
    """The store forgets the take of a batch, does not answer when the ledger is read for its checkpoint, and the
    learner ends before it acknowledges the batch."""
    transport, actor = store(), ToyProducer(store())
    learner = make_learner(tmp_path, transport, updates=5)
    Forgetful(store, transport, "take", 3)

    class Ended(BaseException):
        pass

    def end(entry_ids: Any) -> None:
        if entry_ids:
            raise Ended

    def produce() -> bool:
        if learner.progress.update == 2:
            learner.state.ack_tracker.look = lambda: None  # it does not answer
            transport.ack = end
        return actor()

    with pytest.raises(Ended):
        learner.run(produce)
    assert load_checkpoint(tmp_path).progress.update == 3
    successor = store()
    make_learner(tmp_path, successor, resume=True, updates=5).run(actor)
    check(tmp_path, successor, 5)
