"""`tamiyo episodes`: files leave the run unchanged, are accepted once, and a learner trains on them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.codec import decode_episode, encode_episode
from actors.config import EnvConfig
from actors.env.seed_fleet import SeedTrainingFleet
from actors.errors import UserError
from actors.policy.publish import config_of, from_weights, to_weights
from actors.policy.saved import TRAINED, read_weights
from actors.rollout.episode_files import read_episode, write_bytes
from actors.rollout.wave import Provenance, run_wave
from actors.slots.spaces import seed_spaces
from actors.transport.base import EpisodeHeader
from actors.transport.redis import Transport
from actors.types.episode import RecurrentState
from actors.types.weights import WeightSet
from deploy.cli import main
from deploy.commands.admin.episodes import import_episodes
from learner.config import LearnerConfig
from learner.train import Learner
from tests.support.builders import make_episode
from tests.support.episodes import episodes_equal
from tests.support.queueing import BUSY, DUPLICATE, FENCED, OK, counts, header
from tests.support.stores import Store
from tests.support.waiting import wait_for

pytestmark = pytest.mark.integration
SPACES = seed_spaces(2)
TRAINED_WEIGHTS = read_weights(TRAINED)
NETWORK = from_weights(TRAINED_WEIGHTS, spaces=SPACES)
STRIDE = TRAINED_WEIGHTS.state_stride
ENV = EnvConfig(tasks=("spirals",), slots=1, column_slots=1, horizon_epochs=5, inner_steps=2, device="cpu")


def weights(version: int, generation: int = 1) -> WeightSet:
    return to_weights(NETWORK, version, generation, STRIDE)


def played(folder: Path, by: WeightSet, seeds: Sequence[int] = (0,)) -> list[Path]:
    """Play seed training with these weights, and write the episodes as files, as if exported from a run `other`."""
    fleet, source = SeedTrainingFleet(ENV, len(seeds), 0), Provenance(by.version, by.generation, by.state_stride, 0)
    folder.mkdir(exist_ok=True)
    paths = [folder / f"other-actor-0-{seed}.episode" for seed in seeds]
    for seed, path, episode in zip(seeds, paths, run_wave(fleet, from_weights(by), seeds, source), strict=True):
        write_bytes(path, encode_episode(replace(episode, episode_id=f"other/actor/0/{seed}")))
    return paths


@pytest.fixture
def run(store: Store) -> Transport:
    """A run at weights 5 of generation 1, whose learner accepts a lag of 2."""
    transport = store(max_episodes=8)
    transport.open_generation(-1, "learner")
    transport.publish(weights(5))
    transport.report_learner({"update": 5, "max_policy_lag": 2})
    return transport


@pytest.fixture
def ask(store: Store, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command on the run. Returns its status and the lines that it prints, without the paths."""

    def command(action: str, *args: object) -> tuple[int, list[str]]:
        capsys.readouterr()
        status = main(["episodes", action, *map(str, args), "--redis", store.url, "--run", store.namespace])
        return status, [line.partition(": ")[2] for line in "".join(capsys.readouterr()).splitlines()]

    return command


def test_each_file_is_accepted_or_refused_in_one_line(run: Transport, ask: Any, tmp_path: Path) -> None:
    (good,) = played(tmp_path, weights(5))
    assert ask("import", good) == (0, ["accepted"])
    episode = read_episode(good)
    versions = [np.full_like(episode.policy_version, version) for version in (6, 2, -1)]
    every_state = RecurrentState(*(np.repeat(a[:, :1], len(episode), 1) for a in episode.states))
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "again": ({"episode_id": episode.episode_id}, "duplicate: the episode other/actor/0/0 was imported before"),
        "future": ({"policy_version": versions[0]}, "weights 6 acted it, but the newest of the run are 5"),
        "stale": ({"policy_version": versions[1]}, "more than the 2 versions of learner.max_policy_lag"),
        "later": ({"generation": 2}, "it is of generation 2, but the run is in generation 1"),
        "rule": ({"policy_version": versions[2]}, "no weights of a run acted it"),
        "spaces": ({"spaces_hash": "0" * 16}, f"its spaces are {'0' * 16}, but the learner's are {SPACES.hash}"),
        "stride": ({"state_stride": 1, "states": every_state}, "its states are 1 steps apart"),
        "masked": ({"masks": np.zeros_like(episode.masks)}, "a chosen action is masked"),
    }
    for name, (change, words) in cases.items():
        path = tmp_path / f"{name}.episode"
        write_bytes(path, encode_episode(replace(episode, **{"episode_id": f"x/{name}/0/0", **change})))
        status, (line,) = ask("import", path)
        assert (status, line[:9]) == (1, "refused: "), name
        assert words in line
    broken = tmp_path / "broken"
    broken.write_bytes(good.read_bytes()[:-3])
    assert ask("import", broken)[1][0].startswith("refused: ")
    assert counts(run, "accepted") == (1,)
    assert {actor for actor, _ in run.ledger().actors} == {"imported"}


def test_what_a_run_has_accepted_is_not_imported_into_it(
    run: Transport, ask: Any, store: Store, tmp_path: Path
) -> None:
    (good,), out = played(tmp_path, weights(5)), tmp_path / "out"
    own = replace(read_episode(good), episode_id=f"{store.namespace}/a/7/3")
    run.put(EpisodeHeader.from_episode(own), encode_episode(own))
    assert ask("import", good) == (0, ["accepted"])
    assert ask("export", "--out", out)[0] == 0
    status, lines = ask("import", out)
    assert (status, len(lines)) == (1, 2)
    assert all(line.startswith("refused: duplicate: ") for line in lines)
    other = replace(own, episode_id=f"{store.namespace}-2/a/7/3")  # of another run
    write_bytes(tmp_path / "other.episode", encode_episode(other))
    assert ask("import", tmp_path / "other.episode") == (0, ["accepted"])
    assert run.ledger().accepted == 3


def test_exports_are_copies_of_what_waits(run: Transport, ask: Any, tmp_path: Path) -> None:
    out, episodes = tmp_path / "out", [make_episode(n, sequence=n) for n in range(3)]
    status, (line,) = ask("export", "--out", out)
    assert (status, out.exists()) == (2, False)
    assert "has no episodes waiting now" in line
    for episode in episodes:
        run.put(EpisodeHeader.from_episode(episode), encode_episode(episode))
    (taken,) = run.take(1, 0)
    before = run.ledger()
    assert ask("export", "--out", out)[0] == 0
    assert run.ledger() == before
    files = sorted(out.iterdir())
    assert [f.name for f in files] == [f"{e.episode_id.replace('/', '-')}.episode" for e in episodes]
    assert all(episodes_equal(read_episode(f), e) for f, e in zip(files, episodes, strict=True))
    run.dead_letter(taken.entry_id, "a reason")
    for choice, name in (("--max=1", files[1].name), ("--dead-letters", files[0].name)):
        assert ask("export", "--out", tmp_path / choice, choice)[0] == 0
        assert [f.name for f in (tmp_path / choice).iterdir()] == [name]


@pytest.mark.timeout(120)
def test_a_learner_trains_on_imported_episodes(store: Store, ask: Any, tmp_path: Path) -> None:
    transport, reported = store(), list[dict[str, float]]()
    sizes = {"updates": 2, "batch_episodes": 3, "minibatches": 1, "update_epochs": 1, "max_policy_lag": 1}
    config = LearnerConfig(state_stride=STRIDE, device="cpu", **sizes)
    run = (config, config_of(TRAINED_WEIGHTS), SPACES, transport, tmp_path / "run", 0)
    thread = threading.Thread(target=Learner(*run, report=reported.append, init=weights(0)).run)
    thread.start()
    try:
        wait_for(lambda: transport.head() >= 0, 60)
        first = transport.fetch()
        played(tmp_path / "first", first, range(3))
        assert ask("import", tmp_path / "first") == (0, ["accepted"] * 3)
        wait_for(lambda: transport.head() > first.version, 60)
        status, lines = ask("import", tmp_path / "first")  # their weights are still recent enough
        assert (status, [line.partition(" the")[0] for line in lines]) == (1, ["refused: duplicate:"] * 3)
        played(tmp_path / "second", first, range(3, 6))
        assert ask("import", tmp_path / "second") == (0, ["accepted"] * 3)
    finally:
        thread.join(60)
    assert counts(transport, "accepted", "trained", "dead_lettered", "dropped_stale") == (6, 6, 0, 0)
    assert reported[0]["ratio_error"] < 1e-4  # the learner reproduces the log-probs
    assert reported[1]["policy_lag_mean"] == 1
    files = [read_episode(path) for path in sorted((tmp_path / "first").iterdir())]
    assert reported[0]["return_mean"] == pytest.approx(np.mean([e.undiscounted_return for e in files]), abs=1e-6)


def test_an_id_is_imported_once_on_every_backend(transport: Transport) -> None:
    assert transport.import_episode("a/b/0/0", header(0), b"payload").status is BUSY  # no learner has opened it
    transport.open_generation(-1, "learner")
    assert transport.import_episode("a/b/0/0", header(0), b"payload").status is OK
    assert transport.import_episode("a/b/0/0", header(0), b"payload").status is OK  # a retry of the same call
    assert transport.import_episode("a/b/0/0", header(1), b"payload").status is DUPLICATE
    assert transport.import_episode("a/b/0/1", header(0), b"payload").status is DUPLICATE  # the sequence is used
    assert transport.import_episode("a/b/0/1", header(1), b"payload").status is OK
    assert [d.header for d in transport.waiting(5)] == [header(0), header(1)]
    (first,) = transport.take(1, 0)
    assert [d.payload for d in transport.waiting(5)] == [b"payload"] * 2  # pending ones, too
    transport.ack([first.entry_id])
    assert transport.import_episode("a/b/0/0", header(2), b"payload").status is DUPLICATE
    assert transport.waiting(5)[0].header == header(1)
    transport.publish(weights(3))
    later = transport.open_generation(0, "learner")
    assert transport.import_episode("a/c/0/0", header(5, version=3), b"payload").status is FENCED
    assert transport.import_episode("a/c/0/0", header(6, generation=later.number), b"payload").status is OK
    assert counts(transport, "accepted", "queued") == (3, 2)


def test_imports_wait_for_room_in_the_learners_queue(run: Transport, ask: Any, tmp_path: Path) -> None:
    (good,) = played(tmp_path, weights(5))
    for n in range(8):
        run.put(header(n), b"payload")
    assert ask("import", good, "--wait", 0) == (1, ["refused: the queue is full: import it again later"])
    run.take(1, 0)
    assert ask("import", good, "--wait", 0) == (0, ["accepted"])
    assert decode_episode(run.waiting(9)[-1].payload).task_id == "spirals"


def test_a_run_without_weights_is_refused(store: Store, tmp_path: Path) -> None:
    store().open_generation(-1, "learner")
    with pytest.raises(UserError, match="has published no weights yet"):
        import_episodes(store.url, store.namespace, played(tmp_path, weights(5)), 0.0)
