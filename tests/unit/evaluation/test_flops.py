"""Costs of episodes, compared with the shapes of the matrices."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from actors.blueprints.family import blueprint_index
from actors.config import EnvConfig
from actors.env.episode.epoch import EpochPlan
from actors.env.episode.host_episode import HostEpisode
from actors.env.hosts.mlp import MLPHost
from actors.policy.baselines import RandomPolicy
from actors.rules.schedule import Schedule, Scheduled, fixed_column
from actors.slots.spaces import seed_spaces
from deploy.evaluation import flops
from deploy.evaluation.play import Row, play, play_built

CONFIG = EnvConfig(tasks=("spirals",), host_width=6, horizon_epochs=8, inner_steps=4, rent_weight=1.0, device="cpu")
SAMPLES, EPOCHS = CONFIG.inner_steps * CONFIG.batch_size, CONFIG.horizon_epochs
EARLY = Schedule(1, 2, 1, blueprint=3, blend=0, alpha_target=2, alpha_speed=0, training=2)


def _scheduled(plan: Schedule) -> Row:
    return play(lambda spaces: Scheduled(spaces, plan), CONFIG, 5, [1])[0]


def _host() -> tuple[HostEpisode, flops.Table]:
    host = HostEpisode(CONFIG, 5, 1, seed_spaces(5).action)
    return host, flops.table(host.host, host.task.shape)


def test_flops_match_the_matrix_shapes() -> None:
    own = flops.table(MLPHost(5, 6, 3, 2), (5,))
    assert own.host == 2 * (5 * 6 + 2 * 6 * 6 + 6 * 3)
    assert own.seeds[1]["dense"] == 2 * 2 * 6 * 6
    assert own.seeds[0]["norm"] == 0
    assert own.columns["column_double"] == 2 * (5 * 12 + 2 * 12 * 12 + 12 * 3)
    assert own.seed(2, "column_half") == 2 * (5 * 3 + 2 * 3 * 3 + 3 * 3)


def test_the_cost_of_an_episode_counts_active_seeds() -> None:
    """The seed germinates in epoch 1, trains in a shadow pass from epoch 2, and is blended from epoch 4."""
    row, bare = _scheduled(EARLY), play_built(CONFIG, 5, [1])[0]
    host, own = _host()
    assert bare.training_flops == 3 * SAMPLES * EPOCHS * own.host
    seed = own.seeds[0]["dense"]
    shadow, blended = 2, EPOCHS - 4
    assert row.training_flops == 3 * SAMPLES * (EPOCHS * own.host + blended * seed + shadow * (own.host + seed))
    assert row.inference_flops == own.host + seed
    assert bare.measuring_flops == EPOCHS * len(host.task.val) * own.host


def test_a_column_costs_one_pass_beside_the_host_and_its_ablation_none() -> None:
    row = _scheduled(fixed_column(blueprint_index("column_same"), 1))
    host, own = _host()
    shadow, blended = 1, EPOCHS - 3  # germinated in epoch 1, training in 2, blended from 3
    assert row.training_flops == 3 * SAMPLES * (EPOCHS + blended + shadow) * own.host
    assert row.measuring_flops == len(host.task.val) * (EPOCHS + shadow + blended) * own.host
    assert row.inference_flops == 2 * own.host
    assert row.rent == pytest.approx(np.log2(row.final_params / row.host_params) * 7 / 8)
    assert row.doublings == pytest.approx(row.rent * 8 / 7)


def test_a_host_that_a_column_has_replaced_costs_nothing() -> None:
    at_once = replace(fixed_column(blueprint_index("column_double"), 1), alpha_target=2, alpha_speed=0)
    row = _scheduled(at_once)
    _, own = _host()
    column, kept = own.columns["column_double"], EPOCHS - 4  # fossilized in epoch 4
    assert row.training_flops == 3 * SAMPLES * (4 * own.host + (1 + 1 + kept) * column)
    assert row.inference_flops == column


def test_a_wider_host_costs_its_own_passes() -> None:
    row = play_built(CONFIG, 5, [1], 2)[0]
    host, _ = _host()
    own = flops.table(host.host.with_width(12), host.task.shape)
    assert row.training_flops == 3 * SAMPLES * EPOCHS * own.host
    assert row.inference_flops == own.host


def test_what_is_charged_for_measuring_is_what_was_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    """With random policies, whose hosts have up to four seeds: of four, each is switched once."""
    measured: Counter[int] = Counter()  # FLOPs, by seed of the episode
    evaluated = set()  # (filled slots, evaluations)
    honest = HostEpisode.complete_epoch

    def noted(self: HostEpisode, plan: EpochPlan, *rest: Any) -> Any:
        own, slots = flops.table(self.host, self.task.shape), self.lifecycle.slots
        spent = {s: own.seed(s, self.host.family.name_of(slots[s].blueprint)) for s in plan.alphas}
        passes = [own.host + sum(spent[s] for s in subset) for subset in plan.subsets]
        measured[self.seed] += len(self.task.val) * sum(passes)
        evaluated.add((len(plan.alphas), len(plan.subsets)))
        return honest(self, plan, *rest)

    monkeypatch.setattr(HostEpisode, "complete_epoch", noted)
    config = replace(CONFIG, slots=5, column_slots=0, horizon_epochs=40, budget_ratio=60.0)
    for row in play(RandomPolicy, config, 5, range(4), deterministic=False):
        assert row.measuring_flops == measured[row.seed]
    assert evaluated == {(0, 1), (1, 2), (2, 4), (3, 8), (4, 5)}
