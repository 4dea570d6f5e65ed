"""The trend of the soak test: slope and standard error are correct, also for autocorrelated samples."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.soaking.trend import trend
from benchmarks.soaking.watch import name_of


def test_the_slope_of_a_line_is_exact() -> None:
    found = trend([0.0, 60.0, 120.0, 180.0], [5.0, 6.0, 7.0, 8.0])
    assert found.per_h == pytest.approx(60.0)
    assert found.error_per_h == pytest.approx(0.0, abs=1e-6)
    with pytest.raises(ValueError, match="need three"):
        trend([0.0, 1.0], [1.0, 2.0])


@pytest.mark.parametrize(("kept", "least"), [(0.0, 0.9), (0.8, 0.85)])
def test_two_standard_errors_cover_the_true_slope(kept: float, least: float) -> None:
    """300 simulated soaks of 240 samples, five seconds apart; `kept` is the autocorrelation of the errors."""
    rng = np.random.default_rng(0)
    times = 5.0 * np.arange(240)
    hits = 0
    for _ in range(300):
        noise = np.zeros(240)
        for i, fresh in enumerate(rng.standard_normal(240)):
            noise[i] = kept * noise[i - 1] + fresh
        found = trend(times, 300.0 + 12.0 * times / 3600.0 + noise)
        hits += abs(found.per_h - 12.0) < 2.1 * found.error_per_h
    assert least < hits / 300 <= 0.99


def test_processes_have_short_names() -> None:
    assert name_of("ray::RayRolloutWorker", ["ray::RayRolloutWorker.run"]) == "actor"
    assert name_of("ray::LearnerService", ["ray::LearnerService"]) == "learner"
    assert name_of("raylet", ["/x/raylet", "--flag"]) == "Ray's raylet"
    assert name_of("valkey-server", ["/x/valkey-server unixsocket:/y"]) == "valkey-server"
