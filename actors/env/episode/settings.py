"""`EpisodeSettings`: what an episode draws from the ranges of the configuration, beside its task."""

from __future__ import annotations

from math import cos, exp, floor, log, pi
from typing import NamedTuple

import numpy as np

from actors.config import EnvConfig
from actors.config.checks import span
from actors.env.tasks import find_family
from actors.rng import Purpose, stream
from actors.slots.objective import Prices

LEAST_OBSERVED_ROWS = 64
FREE_COMPUTE = 0.25
"""Share of episodes in which training compute has no price, where episodes draw it."""


class EpisodeSettings(NamedTuple):
    """The sizes, the learning rate and the prices of one episode."""

    host_width: int  # units, or channels
    horizon_epochs: int
    inner_steps: int  # minibatches per epoch
    prices: Prices
    peak_lr: float
    decays: bool  # whether the learning rate falls

    def lr(self, epoch: int) -> float:
        """Return the learning rate of an epoch: constant, or half a cosine (Loshchilov & Hutter, 2017)."""
        return self.peak_lr * (0.5 + 0.5 * cos(pi * epoch / self.horizon_epochs)) if self.decays else self.peak_lr


def width_range(config: EnvConfig, task: str) -> tuple[int, int]:
    """Return the range of host widths on a task family."""
    return find_family(task).host_widths if config.host_width is None else span(config.host_width)


def draw_settings(config: EnvConfig, task: str, run_seed: int, seed: int) -> EpisodeSettings:
    """Draw the settings of an episode on a task family. Each has a random stream of its own."""

    def generator(purpose: Purpose) -> np.random.Generator:
        return stream(run_seed, seed, purpose)

    horizon, of_rate = span(config.horizon_epochs), generator(Purpose.LEARNING_RATE)
    return EpisodeSettings(
        host_width=_log_uniform_integer(width_range(config, task), generator(Purpose.HOST_WIDTH)),
        horizon_epochs=int(generator(Purpose.HORIZON).integers(horizon[0], horizon[1] + 1)),
        inner_steps=_doubled(span(config.inner_steps), generator(Purpose.INNER_STEPS)),
        prices=_draw_prices(config, generator(Purpose.PRICE), generator(Purpose.COMPUTE_PRICE)),
        peak_lr=_log_uniform(span(config.host_lr), of_rate),
        decays=bool(of_rate.random() < config.lr_decay),
    )


def observed_rows(rows: int, rng: np.random.Generator) -> int:
    """Draw on how many of the validation rows the policy sees measurements, at most half; the others are for J."""
    most = max(rows // 2, 1)
    return _log_uniform_integer((min(LEAST_OBSERVED_ROWS, most), most), rng)


def _draw_prices(config: EnvConfig, of_model: np.random.Generator, of_compute: np.random.Generator) -> Prices:
    price, compute = _log_uniform(span(config.points_per_doubling), of_model), config.points_per_compute_doubling
    if isinstance(compute, (int, float)):
        return Prices(price, float(compute))
    share = 0.0 if of_compute.random() < FREE_COMPUTE else _log_uniform(compute, of_compute)
    return Prices(price, share * price)


def _log_uniform(bounds: tuple[float, float], rng: np.random.Generator) -> float:
    low, high = bounds
    return low if low == high else exp(rng.uniform(log(low), log(high)))


def _log_uniform_integer(bounds: tuple[int, int], rng: np.random.Generator) -> int:
    """Draw x with low <= x <= high; the probability of x is proportional to log((x + 1) / x)."""
    low, high = bounds
    return min(floor(exp(rng.uniform(log(low), log(high + 1)))), high)


def _doubled(bounds: tuple[int, int], rng: np.random.Generator) -> int:
    """Draw one of low, 2 * low, 4 * low, ... up to high."""
    low, high = bounds
    return low << int(rng.integers(0, (high // low).bit_length()))
