"""The objective J, step by step, and the ways in which it is paid.

J = final accuracy - accuracy of the untrained host - rent_weight * mean rent over the horizon - penalties, in points.
The dense reward r_t = change of accuracy - rent_weight * rent_t / horizon - penalty_t telescopes: its undiscounted sum
is J.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from actors.config import EnvConfig
from actors.env.slots.stage import Slot


def objective_reward(
    accuracy: float,
    previous_accuracy: float,
    rent: float,
    rent_weight: float,
    horizon_epochs: int,
    penalty: float = 0.0,
) -> float:
    """One step's reward in points; rent = added parameters / host parameters."""
    return accuracy - previous_accuracy - rent_weight * rent / horizon_epochs - penalty


def rent_share(config: EnvConfig, version: int) -> float:
    """Of the rent weight, that rewards of episodes begun by weights `version` have."""
    warmup = config.rent_warmup_updates
    return min(1.0, max(0, version) / warmup) if warmup else 1.0


def shaping(before: float, after: float, gamma: float, terminated: bool) -> float:
    """F = gamma * Phi(s') - Phi(s), with Phi = 0 at a terminated end (Ng, Harada & Russell, 1999; Grzes, 2017).

    Discounted by the same gamma it sums to -Phi(s_0) over every terminated episode, whatever was done. A truncated
    end keeps its potential: the value that is bootstrapped there lies below the unshaped one by just that.
    """
    return gamma * (0.0 if terminated else after) - before


def potential(slots: Iterable[Slot]) -> float:
    """Phi, points: what the seeds contribute, as last measured; 0 where nothing is known to have grown."""
    return sum(slot.contribution for slot in slots if slot.contribution is not None)


class EpisodeReward:
    """Turns J's shares into one episode's rewards, as `config` wants them paid."""

    def __init__(self, config: EnvConfig, twin: Sequence[float], twin_coef: float) -> None:
        """`twin` `[horizon + 1]` points: the accuracy of a host that never grows; empty without one."""
        self.config, self.twin, self.twin_coef = config, twin, twin_coef
        self._epoch = 0
        self._potential = 0.0
        self._unpaid = 0.0

    def step(self, share: float, potential: float, ended: bool, terminated: bool) -> float:
        """One epoch's reward; `share` of J, and Phi after the epoch.

        A twin is paid for in full: an episode that ends early is charged what its twin has yet to gain, or dying
        early would save it.
        """
        c = self.config
        self._unpaid += share
        reward = 0.0
        if c.reward != "sparse" or ended:
            reward, self._unpaid = self._unpaid, 0.0
        if c.reward == "contribution":
            reward += shaping(self._potential, potential, c.shaping_gamma, terminated)
            self._potential = potential
        if self.twin and (c.reward != "sparse" or ended):
            start = 0 if c.reward == "sparse" else self._epoch
            stop = len(self.twin) - 1 if ended else self._epoch + 1
            reward -= self.twin_coef * (self.twin[stop] - self.twin[start])
        self._epoch += 1
        return reward


def objective(
    final_accuracy: float,
    untrained_accuracy: float,
    rents: Sequence[float],
    rent_weight: float,
    horizon_epochs: int,
    penalties: float = 0.0,
) -> float:
    """J from its definition, for one whole episode."""
    return final_accuracy - untrained_accuracy - rent_weight * sum(rents) / horizon_epochs - penalties
