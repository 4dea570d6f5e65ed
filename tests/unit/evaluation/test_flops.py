"""Training compute of episodes, compared with the shapes of the matrices."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from actors.blueprints.family import blueprint_index
from actors.config import EnvConfig
from actors.env.episode.epoch import EpochPlan
from actors.env.episode.host_episode import HostEpisode
from actors.env.hosts.flops import ForwardFlops, forward_flops
from actors.env.hosts.mlp import MLPHost
from actors.policy.baselines import RandomPolicy
from actors.rules.schedule import Schedule, Scheduled, fixed_column
from actors.slots.spaces import seed_spaces
from deploy.evaluation.play import Row, play

CONFIG = EnvConfig(tasks=("spirals",), host_width=6, horizon_epochs=8, inner_steps=4, device="cpu")
SAMPLES, EPOCHS = CONFIG.inner_steps * CONFIG.batch_size, CONFIG.horizon_epochs
DENSE = 3
EARLY = Schedule(1, 2, 1, blueprint=DENSE, blend=0, alpha_target=2, alpha_speed=0, training=2)
DOUBLE, SAME = blueprint_index("column_double"), blueprint_index("column_same")


def _scheduled(plan: Schedule) -> Row:
    return play(lambda spaces: Scheduled(spaces, plan), CONFIG, 5, [1])[0]


def _host() -> tuple[HostEpisode, ForwardFlops]:
    host = HostEpisode(CONFIG, 5, 1, seed_spaces(5).action)
    return host, forward_flops(host.host, host.task.shape)


def _spent(row: Row, host: float) -> float:
    """Forward FLOPs of all samples of an episode, whose training is three passes."""
    return row.flops * 3 * SAMPLES * EPOCHS * host


def _known(flops: float | None) -> float:
    assert flops is not None
    return flops


def test_flops_match_the_matrix_shapes() -> None:
    host = MLPHost(5, 6, 3, 2)
    own = forward_flops(host, (5,))
    assert own.host == 2 * (5 * 6 + 2 * 6 * 6 + 6 * 3)
    named = {host.family.name_of(i): flops for i, flops in enumerate(own.stream[1])}
    assert (named["dense"], named["norm"]) == (2 * 2 * 6 * 6, 0)
    assert own.columns[DOUBLE] == 2 * (5 * 12 + 2 * 12 * 12 + 12 * 3)
    assert own.columns[blueprint_index("column_half")] == 2 * (5 * 3 + 2 * 3 * 3 + 3 * 3)


def test_the_cost_of_an_episode_counts_active_seeds() -> None:
    """The seed germinates in epoch 1, trains in a shadow pass from epoch 2, and is blended from epoch 4. The host with
    it is evaluated once more in each epoch in which it trains, the host without it where it is blended."""
    host, own = _host()
    seed = _known(own.stream[0][DENSE])
    shadow, blended = 2, EPOCHS - 4
    trained = EPOCHS * own.host + blended * seed + shadow * (own.host + seed)
    measured = shadow * (own.host + seed) + blended * own.host
    assert _spent(_scheduled(EARLY), own.host) == pytest.approx(3 * SAMPLES * trained + len(host.observed) * measured)


def test_a_column_costs_one_pass_beside_the_host_and_its_ablation_none() -> None:
    row = _scheduled(fixed_column(SAME, 1))
    host, own = _host()
    shadow, blended = 1, EPOCHS - 3  # germinated in epoch 1, training in 2, blended from 3
    trained = (EPOCHS + blended + shadow) * own.host
    assert _spent(row, own.host) == pytest.approx(3 * SAMPLES * trained + len(host.observed) * shadow * own.host)
    assert row.doublings == 1.0


def test_a_host_that_a_column_has_replaced_costs_nothing() -> None:
    row = _scheduled(replace(fixed_column(DOUBLE, 1), alpha_target=2, alpha_speed=0))
    host, own = _host()
    column, kept = _known(own.columns[DOUBLE]), EPOCHS - 4  # fossilized in epoch 4
    trained = 4 * own.host + (1 + 1 + kept) * column
    assert _spent(row, own.host) == pytest.approx(3 * SAMPLES * trained + len(host.observed) * column)


def test_what_is_charged_is_what_was_trained_and_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    """With random policies, whose hosts have up to four seeds: of four, each is switched once."""
    spent: Counter[int] = Counter()  # FLOPs, by seed of the episode
    host_flops: dict[int, float] = {}
    evaluated = set()  # (filled slots, evaluations)
    honest = HostEpisode.complete_epoch

    def noted(self: HostEpisode, plan: EpochPlan, *rest: Any) -> Any:
        own, slots = forward_flops(self.host, self.task.shape), self.lifecycle.slots
        seeds = {s: _known(own.stream[s][slots[s].blueprint]) for s in plan.alphas}
        passes = [own.host + sum(seeds[s] for s in subset) for subset in plan.subsets]
        shadow = own.host + sum(seeds.values()) if plan.training else 0.0
        spent[self.seed] += len(self.observed) * sum(passes[1:]) + 3 * SAMPLES * (passes[0] + shadow)
        host_flops[self.seed] = own.host
        evaluated.add((len(plan.alphas), len(plan.subsets)))
        return honest(self, plan, *rest)

    monkeypatch.setattr(HostEpisode, "complete_epoch", noted)
    config = replace(CONFIG, slots=5, column_slots=0, horizon_epochs=40, budget_ratio=60.0)
    for row in play(RandomPolicy, config, 5, range(4), deterministic=False):
        assert row.flops * 3 * SAMPLES * 40 * host_flops[row.seed] == pytest.approx(spent[row.seed])
    assert evaluated == {(0, 1), (1, 2), (2, 4), (3, 8), (4, 5)}
