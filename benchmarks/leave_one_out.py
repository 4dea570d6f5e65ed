"""How much of the variance of advantages does a leave-one-out baseline remove?

    python -m benchmarks.leave_one_out [--quick] [--policy CHECKPOINT] [--json FILE]

A policy plays waves of preset `research`. Advantages are estimated as the learner does, and compared with what is left
of them after the mean of the other episodes of the seed is subtracted, for several numbers of episodes per seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from actors.env.seed_fleet import make_fleet
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.saved import find_checkpoint
from actors.rollout.sampler import EpisodeSeeds, WaveSampler
from actors.rollout.wave import Provenance
from benchmarks.form import parser, publish
from deploy.config.schema import PRESETS
from learner.ppo.batch import make_batch
from learner.ppo.gae import gae
from learner.ppo.leave_one_out import leave_one_out
from learner.run.checkpoint import load_policy

RUN_SEED = 77
CONFIG = PRESETS["research"]


def main() -> None:
    known = parser("leave_one_out", "What a leave-one-out baseline removes.")
    known.add_argument("--policy", type=Path, default=Path("actors/policy/trained"), help="a checkpoint or a run")
    args = known.parse_args()
    policy = load_policy(find_checkpoint(args.policy), CONFIG.env.total_slots)
    rows = [_variances(policy, number, waves=1 if args.quick else 60) for number in ((4,) if args.quick else (2, 4, 8))]
    publish(rows, [], args.json)


def _variances(policy: FactoredRecurrentActorCritic, episodes_per_seed: int, waves: int) -> dict[str, Any]:
    """Return the variances of advantages in points squared, without and with the baseline."""
    fleet = make_fleet(CONFIG.env, CONFIG.actors.envs_per_actor, RUN_SEED)
    sampler = WaveSampler(fleet, EpisodeSeeds(RUN_SEED, 0, None), episodes_per_seed=episodes_per_seed)
    plain, left = [], []
    for _ in range(waves):
        source = Provenance(0, 0, 1, RUN_SEED)
        episodes = sampler.sample(policy, source)
        batch = make_batch(episodes, fleet.spaces)
        values = torch.cat([torch.from_numpy(episode.values) for episode in episodes])
        advantages = gae(
            batch.to_rows(batch.rewards),
            batch.to_rows(values),
            batch.valid,
            batch.terminated,
            batch.bootstrap_value,
            CONFIG.learner.gamma,
            CONFIG.learner.gae_lambda,
        ).advantages
        plain.append(batch.from_rows(advantages))
        left.append(batch.from_rows(leave_one_out(advantages, batch.valid, batch.seed_index)))
    before, after = float(torch.cat(plain).var()), float(torch.cat(left).var())
    return {
        "episodes per seed": episodes_per_seed,
        "episodes": waves * fleet.num_envs,
        "variance": before,
        "with the baseline": after,
        "share left": after / before,
    }


if __name__ == "__main__":
    main()
