"""Half of the validation rows, at least, are for J alone: what the policy sees depends on the others only."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from actors.blueprints.family import blueprint_index
from actors.config import EnvConfig
from actors.env.episode.host_episode import HostEpisode
from actors.env.episode.settings import observed_rows
from actors.env.seed_fleet import SeedTrainingFleet
from actors.env.tasks import Split, families
from actors.slots.spaces import seed_spaces
from actors.types.actions import Op
from actors.types.fleet_step import FleetStep
from tests.support.env.fleets import BACKENDS, Backend
from tests.support.env.scripted_host import Accuracy, play
from tests.support.env.walks import TINY, WAIT, Action, act, grow

CONFIG = EnvConfig(**TINY | {"horizon_epochs": 8})
GROW = [*grow(1, 3), act(Op.FOSSILIZE, 1), *grow(4, blueprint_index("column_double"), 0)]
STREAM_ONLY = [*GROW[:4], WAIT, WAIT]  # what a column learns depends on the loss that is observed, as it must


def episode(config: EnvConfig, seed: int) -> HostEpisode:
    return HostEpisode(config, 0, seed, seed_spaces(config.total_slots).action)


def rows(split: Split) -> Counter[tuple[bytes, int]]:
    return Counter(zip((x.tobytes() for x in split.x), split.y.tolist(), strict=True))


@pytest.mark.parametrize("task", ["spirals", "wine", "digits"])
def test_observed_and_scored_rows_are_the_validation_rows(task: str) -> None:
    config, sizes = replace(CONFIG, tasks=(task,)), []
    for seed in range(8):
        drawn, again = episode(config, seed), episode(config, seed)
        assert rows(drawn.observed) + rows(drawn.scored) == rows(drawn.task.val)
        assert rows(drawn.observed) == rows(again.observed)
        half = len(drawn.task.val) // 2
        assert min(64, half) <= len(drawn.observed) <= half <= len(drawn.scored)
        sizes.append(len(drawn.observed))
    if task != "spirals":  # another choice of the same rows
        assert rows(episode(config, 9).observed) != rows(drawn.observed)
    assert len(set(sizes)) > 4 or task == "wine"  # wine has 44 rows, of which 22 are observed


def test_families_that_can_draw_rows_score_at_least_512() -> None:
    drawn = [f for f in families() if f.factory is not None and f.sizes.val >= 1000]
    assert len(drawn) > 30
    assert all(f.sizes.val - f.sizes.val // 2 >= 512 for f in drawn)


@pytest.mark.parametrize(("have", "low", "high"), [(1024, 64, 512), (700, 64, 350), (96, 48, 48), (2, 1, 1), (1, 1, 1)])
def test_the_number_of_observed_rows_is_log_uniform(have: int, low: int, high: int) -> None:
    rng = np.random.default_rng(0)
    drawn = np.array([observed_rows(have, rng) for _ in range(2000)])
    assert (drawn.min() >= low, drawn.max() <= high) == (True, True)
    edges = low * (high / low) ** np.linspace(0.0, 1.0, 5)
    if low < high:
        assert np.histogram(drawn, edges)[0] / 2000 == pytest.approx([0.25] * 4, abs=0.04)


def played(monkeypatch: pytest.MonkeyPatch, changed: str, backend: Backend, script: list[Action]) -> list[FleetStep]:
    """Play a fleet; the labels of the rows `changed`, "observed" or "scored", are others."""
    honest = HostEpisode.__init__

    def init(self: HostEpisode, *args: object) -> None:
        honest(self, *args)
        if changed:
            split = getattr(self, changed)
            setattr(self, changed, Split(split.x, (split.y + 1) % self.task.num_classes))

    with monkeypatch.context() as patch:
        patch.setattr(HostEpisode, "__init__", init)
        fleet = SeedTrainingFleet(replace(CONFIG, backend=backend), 2, 0)
        start = fleet.reset(range(2))
        return [start, *(fleet.step(np.stack([action] * 2)) for action in script)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_rewards_depend_on_scored_rows_and_all_else_on_observed_ones(
    monkeypatch: pytest.MonkeyPatch, backend: Backend
) -> None:
    plain, scored = (played(monkeypatch, changed, backend, GROW) for changed in ("", "scored"))
    for a, b in zip(plain, scored, strict=True):
        np.testing.assert_array_equal(a.obs, b.obs)  # accuracies, losses and contributions
        np.testing.assert_array_equal(a.terminated, b.terminated)
    assert all((a.rewards != b.rewards).any() for a, b in zip(plain[1:], scored[1:], strict=True))
    plain, observed = (played(monkeypatch, changed, backend, STREAM_ONLY) for changed in ("", "observed"))
    for a, b in zip(plain, observed, strict=True):
        assert (a.obs != b.obs).any()
        np.testing.assert_array_equal(a.rewards, b.rewards)


@pytest.mark.parametrize(("collapses", "panics"), [("observed", True), ("scored", False)])
def test_the_governor_watches_the_observed_rows(collapses: str, panics: bool) -> None:
    """An accuracy that falls to chance, after it was far above it."""

    def accuracy(rows: str) -> Accuracy:
        return lambda epoch, on: 33.0 if rows == collapses and epoch >= 4 else 90.0

    run = play(CONFIG, accuracy("scored"), [], observed=accuracy("observed"))
    assert len(run.rewards) == (4 if panics else 8)
    assert run.objective == pytest.approx(-5.0 if panics else 33.0 - 90.0)
