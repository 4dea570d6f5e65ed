"""The rewards of an episode, made of the terms of J (`actors.slots.objective`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from actors.config import EnvConfig
from actors.slots.stage import Slot


def shaping(before: float, after: float, gamma: float, terminated: bool) -> float:
    """Return the shaping reward F = gamma * Phi(s') - Phi(s) (Ng, Harada & Russell, 1999).

    Phi is 0 at a terminated end (Grzes, 2017), so that the discounted sum over an episode is -Phi(s_0), whatever the
    actions. A truncated end keeps its potential: the value bootstrapped there is lower than the unshaped one by Phi.
    """
    return gamma * (0.0 if terminated else after) - before


def potential(slots: Iterable[Slot]) -> float:
    """Return Phi: the sum of the last measured contributions, in points."""
    return sum(slot.contribution for slot in slots if slot.contribution is not None)


class EpisodeReward:
    """Turns the terms of J into the rewards of one episode, as `config.reward` and `config.reference` say.

    - `objective`: each epoch's term of J.
    - `sparse`: the sum of all terms at the end, 0 before.
    - `contribution`: each epoch's term, plus shaping by the contributions of the seeds.

    With `reference: twin`, `twin_coef` times the twin's change of accuracy is subtracted.
    """

    def __init__(self, config: EnvConfig, twin: Sequence[float], twin_coef: float) -> None:
        """`twin` holds the accuracies `[horizon + 1]` of the never-grow twin, in points; empty without one."""
        self.config, self.twin, self.twin_coef = config, twin, twin_coef
        self._epoch = 0
        self._potential = 0.0
        self._pending = 0.0

    def step(self, term: float, potential: float, ended: bool, terminated: bool) -> float:
        """Return the reward of one epoch, from its term of J and the potential after it.

        An episode that ends early is charged everything that its twin still gains. Otherwise ending early would pay.
        """
        c = self.config
        self._pending += term
        reward = 0.0
        if c.reward != "sparse" or ended:
            reward, self._pending = self._pending, 0.0
        if c.reward == "contribution":
            reward += shaping(self._potential, potential, c.shaping_gamma, terminated)
            self._potential = potential
        if self.twin and (c.reward != "sparse" or ended):
            start = 0 if c.reward == "sparse" else self._epoch
            stop = len(self.twin) - 1 if ended else self._epoch + 1
            reward -= self.twin_coef * (self.twin[stop] - self.twin[start])
        self._epoch += 1
        return reward
