"""Two learners on one folder and one store: one lineage survives, and ledger, checkpoints and rows agree on it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from actors.errors import UserError
from actors.policy.saved import CheckpointKey, read_weights
from actors.transport.base import Fenced
from learner.run import checkpoint as checkpoint_module
from learner.run.checkpoint import UnreadableCheckpoint, list_checkpoints, load_checkpoint, write_durably
from learner.run.lineage import Lineage, start_from
from learner.train import Learner
from tests.support.learning.toy_learner import ToyProducer, handle, lines, make_learner
from tests.support.stores import Store


def names(folder: Path) -> list[tuple[int, int]]:
    keys = [CheckpointKey.parse(path.name) for path in list_checkpoints(folder / "checkpoints")]
    return [tuple(key) for key in keys if key]  # type: ignore[misc]


def check_agreement(folder: Path, store: Store) -> None:
    """Ledger, newest checkpoint and rows tell the same; no episode twice."""
    ledger = handle(store).ledger()
    ledger.check()
    ids = [row["episode_id"] for row in lines(folder / "episodes.jsonl")]
    assert len(ids) == len(set(ids)) == ledger.trained == load_checkpoint(folder).progress.episodes_trained


ZOMBIES = {
    "in its update": lambda learner: (learner.state, "settle"),
    "between the answer and the name": lambda learner: (checkpoint_module, "link"),
    "before it removes old files": lambda learner: (checkpoint_module, "_prune"),
    "before it acknowledges": lambda learner: (learner.transport, "ack"),
}


@pytest.mark.parametrize("point", ZOMBIES)
def test_a_zombie_changes_nothing_of_what_its_successor_made(
    store: Store, point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first learner is suspended in its fourth update; the second reaches the sixth."""
    producer = ToyProducer(store)
    zombie = make_learner(tmp_path, store, updates=9, checkpoints_kept=1)
    subject, name = ZOMBIES[point](zombie)
    original, successors = getattr(subject, name), list[Learner]()

    def suspended(*args: object, **options: object) -> object:
        if zombie.progress.update == 4 and not successors:
            successors.append(make_learner(tmp_path, store, resume=True, updates=6, checkpoints_kept=1))
            successors[0].run(producer)
        return original(*args, **options)

    monkeypatch.setattr(subject, name, suspended)
    with pytest.raises(Fenced):
        zombie.run(producer)
    assert names(tmp_path)[-1] == (2, 6)
    check_agreement(tmp_path, store)
    make_learner(tmp_path, store, resume=True, updates=8, checkpoints_kept=1).run(producer)
    assert set(names(tmp_path)) <= {(1, 4), (2, 4), (2, 5), (2, 6), (3, 6), (3, 7), (3, 8)}
    check_agreement(tmp_path, store)


def test_a_number_is_claimed_by_one_learner_though_the_store_forgets(store: Store, tmp_path: Path) -> None:
    one, other = (Lineage(tmp_path, store()) for _ in range(2))
    one.take_over()
    store.empty()
    other.take_over()
    assert (one.generation, other.generation) == (1, 2)
    for call in (one.check, one.fence, lambda: one.advance(0)):
        with pytest.raises(Fenced):
            call()
    other.fence()
    other.advance(0)
    assert other.generation == 3


def test_without_hard_links_a_name_is_not_taken_twice_either(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    make_learner(tmp_path, store, updates=2).run(ToyProducer(store))
    check_agreement(tmp_path, store)
    path = list_checkpoints(tmp_path / "checkpoints")[-1]
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        write_durably(path, b"other")
    assert path.read_bytes() == before


def test_a_checkpoint_of_parts_of_two_is_refused(store: Store, tmp_path: Path) -> None:
    """Two files of equal length, the end of one put to the beginning of the other."""
    make_learner(tmp_path, store, updates=3).run(ToyProducer(store))
    one, other = list_checkpoints(tmp_path / "checkpoints")[-2:]
    a, b = one.read_bytes(), other.read_bytes()
    other.write_bytes(b[: -len(b) // 3] + a[-len(b) // 3 :])
    assert len(other.read_bytes()) == len(b)
    for read in (load_checkpoint, read_weights):
        with pytest.raises(UserError, match="does not match its sha256"):
            read(tmp_path)


def test_a_checkpoint_that_cannot_be_read_back_is_an_error_before_anything_relies_on_it(
    store: Store, tmp_path: Path
) -> None:
    learner = make_learner(tmp_path, store, updates=3)
    applied = learner.state.ack_tracker.applied

    def spoil(taken: object) -> None:
        applied(taken)  # type: ignore[arg-type]
        if learner.progress.update == 2:
            learner.state.ack_tracker.consumed += ("no id of an episode",)

    learner.state.ack_tracker.applied = spoil  # type: ignore[method-assign,assignment]
    with pytest.raises(UnreadableCheckpoint, match="checkpoint of update 2 cannot be read back"):
        learner.run(ToyProducer(store))
    assert names(tmp_path) == [(1, 0), (1, 1)]
    ledger = handle(store).ledger()
    assert (ledger.trained, ledger.pending) == (4, 4)
    assert not list(tmp_path.rglob("*.partial"))


def test_a_run_goes_back_to_a_checkpoint_that_is_named(store: Store, tmp_path: Path) -> None:
    producer = ToyProducer(store)
    make_learner(tmp_path, store, updates=5).run(producer)
    start_from(tmp_path / "checkpoints" / CheckpointKey(1, 4).file_name)
    learner = make_learner(tmp_path, store, resume=True, updates=6)
    assert learner.progress.update == 4
    learner.run(producer)
    assert [line["update"] for line in lines(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert handle(store).ledger().trained_then_lost == 4  # of the fifth update, which was given up
    assert (1, 5) not in names(tmp_path)
    check_agreement(tmp_path, store)


@pytest.mark.parametrize("kept", [0, 2])
def test_a_folder_that_holds_less_than_the_store_counts_is_continued_in_agreement(
    store: Store, tmp_path: Path, kept: int
) -> None:
    """It was removed, or is a backup of an earlier update."""
    folder, backup = tmp_path / "run", tmp_path / "backup"
    producer = ToyProducer(store)
    make_learner(folder, store, updates=2).run(producer)
    shutil.copytree(folder, backup, symlinks=True)
    make_learner(folder, store, resume=True, updates=5).run(producer)
    assert handle(store).ledger().trained == 20
    shutil.rmtree(folder)
    if kept:
        shutil.copytree(backup, folder, symlinks=True)
    learner = make_learner(folder, store, resume=kept > 0, updates=kept + 2)
    learner.run(producer)
    assert handle(store).ledger().trained_then_lost == 4 * (5 - kept)
    assert f"{4 * (5 - kept)} episodes were trained by updates that no checkpoint holds" in " ".join(learner.notes)
    check_agreement(folder, store)
