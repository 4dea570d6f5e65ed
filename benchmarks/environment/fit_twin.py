"""Fits the multiple of the never-grow twin's gain that rewards subtract, for every training family.

    python -m benchmarks.environment.fit_twin [--quick] [--json FILE]

Each seed is played by the random policy, with which training begins, and without growth. The coefficient is the slope
of the gain in accuracy of the former on that of the latter. A full run writes
`actors/env/episode/twin_shares.json`, which `env.reference: twin` reads. A wrong coefficient costs variance but
causes no bias, since the twin does not depend on actions.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import numpy as np

from actors.config import EnvConfig
from actors.env.episode.twin import COEFFICIENTS
from actors.env.seed_fleet import SeedTrainingFleet
from actors.env.tasks import families
from actors.policy.baselines import RandomPolicy
from actors.rollout.wave import PolicyNoise
from benchmarks.form import Target, parser, publish

RUN_SEED = 20250117  # used by no reported run


@dataclass(frozen=True)
class Fit:
    """The fit of one family; variances are those of J over seeds, in squared points."""

    share: float  # the coefficient
    error: float  # its standard error
    variance: float
    variance_left: float  # with the twin subtracted


def fit(name: str, seeds: int, config: EnvConfig) -> Fit:
    """Play each seed with and without the policy, in one fleet."""
    fleet = SeedTrainingFleet(config, 2 * seeds, RUN_SEED)
    seen = fleet.reset([*range(seeds), *range(seeds)])
    policy, noise = RandomPolicy(fleet.spaces), PolicyNoise(RUN_SEED, range(2 * seeds), len(fleet.spaces.action.heads))
    returns = np.zeros(2 * seeds)
    while fleet.running:
        state = policy.initial_state(2 * seeds)
        actions = policy.act(seen.obs, seen.blueprint_indices, seen.masks, state, noise.step())[0].actions
        actions[:seeds] = 0
        seen = fleet.step(actions)
        returns += seen.rewards
    gains = np.array([timeline.accuracy[-1] - timeline.accuracy[0] for timeline in fleet.timelines()])
    twin, grown, j = gains[:seeds], gains[seeds:], returns[seeds:]
    spread = float(((twin - twin.mean()) ** 2).sum())
    slope = float((grown - grown.mean()) @ (twin - twin.mean())) / spread if spread else 0.0
    share = max(0.0, slope)  # of all shares, it leaves the least variance
    left = grown - grown.mean() - share * (twin - twin.mean())
    error = float(np.sqrt((left**2).sum() / max(1, seeds - 2) / spread)) if spread else 0.0
    return Fit(*(round(v, 3) for v in (share, error, float(j.var()), float((j - share * twin).var()))))


def main() -> None:
    args = parser("environment.fit_twin", __doc__.splitlines()[0]).parse_args()
    seeds, horizon = (4, 4) if args.quick else (32, EnvConfig().horizon_epochs)
    known = [family.name for family in families("train") if family.factory is not None]
    fits = {
        name: fit(name, seeds, EnvConfig(tasks=(name,), horizon_epochs=horizon))
        for name in (["spirals", "digits"] if args.quick else known)
    }
    rows = [
        {"task": name} | asdict(f) | {"variance falls by": f.variance / max(f.variance_left, 1e-9)}
        for name, f in fits.items()
    ]
    lower = sum(f.variance_left < f.variance for f in fits.values())
    publish(rows, [Target("families whose J varies less with the twin", lower, len(fits))], args.json)
    if not args.quick:
        settings = {"policy": "random", "seeds": seeds, "horizon_epochs": horizon, "run_seed": RUN_SEED}
        made = "python -m benchmarks.environment.fit_twin: slope of the random policy's gain on its twin's, by seed"
        content = {"made": made, "settings": settings, "families": {name: asdict(f) for name, f in fits.items()}}
        COEFFICIENTS.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
