"""Actors that join and leave a run during training: seeds are not repeated, and every episode counts once."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from actors.transport.redis import connect
from deploy.launch.embedded_redis import EmbeddedRedis
from tests.support.launching import rows, small, tamiyo

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(240)]


def test_actors_can_join_and_leave_during_training(tmp_path: Path) -> None:
    folder = tmp_path / "joined"
    with EmbeddedRedis() as server:
        flags = [*small(tmp_path, "joined", learner__updates=1_000_000), "--redis", server.url]

        def trained() -> dict[str, list[int]]:
            """Seeds by incarnation."""
            found = defaultdict(list)
            for row in rows(folder / "episodes.jsonl"):
                found["/".join(row["episode_id"].split("/")[1:3])].append(row["seed"])
            return found

        with tamiyo(tmp_path, "learner", *flags) as learner, tamiyo(tmp_path, "actors", *flags) as first:
            learner.wait_for(lambda: len(trained()) == 1, 120.0)
            with tamiyo(tmp_path, "actors", *flags) as second:
                learner.wait_for(lambda: len(trained()) == 2, 120.0)
                before = {who: len(seeds) for who, seeds in trained().items()}
                learner.wait_for(lambda: all(len(trained()[who]) > n + 4 for who, n in before.items()))
                assert first.end(15) in (0, 130)
                (staying,) = [who for who in trained() if who != min(before)]
                left = len(trained()[staying])
                learner.wait_for(lambda: len(trained()[staying]) > left + 8)
                assert second.end(15) in (0, 130)
            with tamiyo(tmp_path, "actors", *flags) as third:
                learner.wait_for(lambda: len(trained()) == 3, 120.0)
                third.end(15)
            assert learner.end(15) == 130
            assert learner.err == first.err == second.err == third.err == ""
        transport = connect(server.url, None, "joined")
        ledger = transport.ledger()
        ledger.check()
        transport.close()
    seeds = [seed for own in trained().values() for seed in own]
    assert len(seeds) == len(set(seeds)) == ledger.trained
    assert len(ledger.actors) == 3
