"""Players: what plays the episodes of an evaluation. Lines: the rows of its tables, each with its players by price."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from actors.config import EnvConfig
from actors.policy.distribution import DECISIONS
from actors.rules.names import parse_rule, rule_policy
from actors.rules.schedule import Schedule
from actors.slots.objective import Prices
from deploy.evaluation.play import EpisodeResult, play, play_built
from deploy.evaluation.suite import ALL_PRICES
from learner.run.checkpoint import load_network

NEVER, BUILT = "never grow", "built wider x{}"
SCALES = (1, 2, 4, 8)
"""Widths of the sweep, in multiples of the drawn one."""
BEST, TRIAL, FIXED, GAP, CHOOSER = "best single rule", "best trial rule", "fixed column", "gap rule", "chooser"
POLICY, BLIND = "policy", "blind"
FEEDFORWARD, NO_PRUNE = "feedforward", "without prune"
"""Lines of `--also` that have a target."""


@dataclass(frozen=True)
class Player:
    """A rule, a policy, or a host that is built wider and never grows (`scale`)."""

    rule: str = ""
    scale: int = 0
    line: str = ""  # of a policy: its row of the table, which it may share with others
    sha256: str = ""  # of the policy's file
    env: tuple[tuple[str, Any], ...] = ()  # settings of the environment that it was trained in and plays in
    checkpoint: str = ""  # the policy's file; "" if only its episodes are kept

    @property
    def name(self) -> str:
        """The name of the file of its episodes."""
        if self.scale:
            return f"built-{self.scale}"
        text = self.rule or f"{self.line}-{self.sha256[:8]}"
        return "".join(c if c.isalnum() or c in "-.@=,+" else "_" for c in text)

    @property
    def prices_seen(self) -> int:
        """How many of `Prices` its actions can depend on: none, that of the model, or both."""
        return 0 if self.scale else prices_seen(self.rule)

    def identity(self) -> dict[str, Any]:
        """Return all that its actions depend on, but for the prices and the code, as plain data."""
        settings = asdict(parse_rule(self.rule)) if self.rule else {}
        known = {name: value for name, value in asdict(self).items() if name != "checkpoint"}
        known["settings"] = json.loads(json.dumps(settings, default=lambda array: array.tolist()))
        return known | ({"decisions": DECISIONS} if self.sha256 else {})

    def play(self, config: EnvConfig, run_seed: int, seeds: Sequence[int]) -> list[EpisodeResult]:
        """Play one episode of each seed; `config` names one family."""
        if self.scale:
            return play_built(config, run_seed, seeds, self.scale)
        if self.rule:
            return play(lambda spaces: rule_policy(self.rule, spaces), config, run_seed, seeds)
        network = _network(self.checkpoint, config.total_slots)
        return play(lambda spaces: network, config, run_seed, seeds)


def prices_seen(rule: str) -> int:
    """Return on how many of `Prices` the actions of a rule, or of a policy (""), can depend."""
    if not rule:
        return 2
    return 0 if isinstance(parse_rule(rule), Schedule) else 1


Lineup = Mapping[str, Mapping[Prices, tuple[Player, ...]]]
"""The rows of the tables by name: their players at each price, several only for policies that were trained alike."""


def rule_player(rule: str) -> Player:
    """Return the player of a rule; never growing is a host that is built as drawn."""
    return Player(scale=1) if rule == "never" else Player(rule=rule)


def policy_player(line: str, checkpoint: Path, env: Mapping[str, Any] | None = None) -> Player:
    """Return the player of a checkpoint file; `env` holds what its environment has instead of the common settings."""
    digest = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    return Player(line=line, sha256=digest, env=tuple((env or {}).items()), checkpoint=str(checkpoint))


def always_played(rules: Mapping[str, Mapping[Prices, str]]) -> Lineup:
    """Return the lines that need no policy; `rules` names a rule for each line and price."""
    built = {BUILT.format(k): same(Player(scale=k)) for k in SCALES[1:]}
    tuned = {name: {w: (rule_player(by_price[w]),) for w in ALL_PRICES} for name, by_price in rules.items()}
    return {NEVER: same(Player(scale=1)), **built, **tuned, CHOOSER: same(Player(rule="chooser"))}


def same(*players: Player) -> dict[Prices, tuple[Player, ...]]:
    """Return a line with the same players at all prices."""
    return dict.fromkeys(ALL_PRICES, players)


def of_policies(players: Sequence[Player]) -> Lineup:
    """Return the lines of policies; those of `--checkpoint` and `--blind` come first, and those of a line are in the
    order of their names, so that resampling does not depend on how they were given."""
    players = sorted(players, key=lambda player: player.name)
    names = {p.line for p in players}
    ordered = [name for name in (POLICY, BLIND) if name in names] + sorted(names - {POLICY, BLIND})
    return {name: same(*(p for p in players if p.line == name)) for name in ordered}


_network = cache(load_network)
