"""Players: the policies, schedules and baselines of an evaluation, and how each is played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from actors.config import EnvConfig
from actors.env.slots.topology import Topology
from actors.policy.baselines import NeverGrow
from actors.policy.network import FactoredRecurrentActorCritic
from actors.rules.names import rule_policy
from actors.rules.schedule import Schedule, Scheduled
from deploy.evaluation.play import Row, largest, matched_epochs, play
from deploy.evaluation.schedules import RandomSchedule
from learner.run.checkpoint import load_policy

How = Literal["policy", "never", "largest", "schedule", "rule", "random", "scratch", "matched"]


@dataclass(frozen=True)
class Player:
    """`line` is its line of the table: policies that were trained alike share one, and are told apart by `index`."""

    line: str
    how: How
    index: int = 0
    checkpoint: str = ""
    sampled: bool = False
    schedule: Schedule | None = None  # the ceiling's differs by family
    rule: str = ""
    price: float | None = None  # that it observes, in points per doubling; None for that of the evaluation
    leader: str = ""  # the line whose episodes, of the same index, it is matched with

    @property
    def name(self) -> str:
        """Of its folder of cells."""
        return f"{self.line.replace(' ', '_').replace(':', '_')}-{self.index}"


def roster(
    checkpoints: Sequence[str],
    blind: Sequence[str],
    others: Mapping[str, Sequence[str]],
    tuned: Mapping[str, Schedule],
    rules: Mapping[str, str],
    prices: Sequence[float],
) -> list[Player]:
    """All that are compared; leaders before those who follow them. The ceiling is `per-task best`, whose schedule
    the family decides. `others`, `tuned` and `rules` are policies, schedules and rules by the names of their lines.
    The policies also play at every one of `prices`."""
    players = [Player("never grow", "never"), Player("static maximum", "largest")]
    players += [Player(line, "rule", rule=rule) for line, rule in rules.items()]
    players += [Player(name, "schedule", schedule=own) for name, own in tuned.items()]
    players.append(Player("per-task best", "schedule"))
    for sampled in (False, True):
        mode = "sampled" if sampled else "greedy"
        for line, paths in (("policy", checkpoints), ("blind", blind)):
            players += [Player(f"{line} {mode}", "policy", i, path, sampled) for i, path in enumerate(paths)]
    for price in prices:
        line = f"policy at price {price:g}"
        players += [Player(line, "policy", i, path, price=price) for i, path in enumerate(checkpoints)]
    players += [Player(name, "policy", i, path) for name, paths in others.items() for i, path in enumerate(paths)]
    for line, how in FOLLOWERS.items():
        players += [Player(line, how, i, leader="policy greedy") for i in range(len(checkpoints))]
    return players


FOLLOWERS: dict[str, How] = {
    "random matched": "random",
    "from scratch": "scratch",
    "from scratch, compute-matched": "matched",
}


@cache
def _network(path: str, slots: int) -> FactoredRecurrentActorCritic:
    return load_policy(path, slots)


def play_player(
    player: Player, config: EnvConfig, run_seed: int, seeds: Sequence[int], leader: Sequence[Row] = ()
) -> list[Row]:
    """`config` names one family; `leader` holds the leader's rows on the same seeds."""
    if player.price is not None:
        config = replace(config, rent_weight=player.price)
    match player.how:
        case "policy":
            network = _network(player.checkpoint, config.total_slots)
            return play(lambda spaces: network, config, run_seed, seeds, deterministic=not player.sampled)
        case "never":
            return play(NeverGrow, config, run_seed, seeds)
        case "largest":
            return play(NeverGrow, config, run_seed, seeds, topologies=largest(config, run_seed, seeds))
        case "schedule":
            plan = player.schedule
            assert plan is not None, f"{player.name} has no schedule"
            return play(lambda spaces: Scheduled(spaces, plan), config, run_seed, seeds)
        case "rule":
            return play(lambda spaces: rule_policy(player.rule, spaces), config, run_seed, seeds)
        case "random":
            counts = [len(row.topology) for row in leader]
            return play(lambda spaces: RandomSchedule(spaces, counts), config, run_seed, seeds)
        case "scratch":
            return play(NeverGrow, config, run_seed, seeds, topologies=[row.grown for row in leader])
        case "matched":
            return _matched(config, run_seed, leader)


def play_schedules(
    plans: Sequence[Schedule], config: EnvConfig, run_seed: int, seeds: Sequence[int]
) -> list[tuple[float, float]]:
    """(gain, rent) of each plan on the seed beside it; the test rows are not read."""
    rows = play(lambda spaces: Scheduled(spaces, plans), config, run_seed, seeds, read_test=False)
    return [(row.gain, row.rent) for row in rows]


def _matched(config: EnvConfig, run_seed: int, leader: Sequence[Row]) -> list[Row]:
    """Those that train for equally long, in one fleet."""
    by_epochs: dict[int, list[Row]] = {}
    for row in leader:
        by_epochs.setdefault(matched_epochs(config, run_seed, row), []).append(row)
    found: dict[int, Row] = {}
    for epochs, rows in by_epochs.items():
        own = replace(config, horizon_epochs=epochs)
        topologies: list[Topology] = [row.grown for row in rows]
        played = play(NeverGrow, own, run_seed, [row.seed for row in rows], topologies=topologies)
        found |= {row.seed: row for row in played}
    return [found[row.seed] for row in leader]
