"""Environments in which a policy decides how a small network grows while it trains.

The host is a network that learns a classification task. It has slots; in a slot a seed (a small residual module) can
germinate, train, be blended into the host, and be kept or pruned. One step is one epoch of the host's training.
`make_env` makes one environment; the docstring of `SeedTrainingEnv` is the specification.

Where to read on:

- The rules: `episode/` (`host_episode.py`, one episode without tensors, and its parts: an epoch as data, rewards, the
  governor that stops broken training, the never-grow twin as a baseline, the record of the epochs), `actors/slots`
  (stages, legal actions, contributions, observation), `actors/rng.py` (seeding).
- The networks: `hosts/` (MLP, 1-D and 2-D CNN), `actors/blueprints` (what seeds can be, how they are blended).
- The data: `tasks/`.
- What runs: `seed_fleet.py` steps environments together. It trains their hosts through the interface in
  `fleet_networks.py`, which has two backends: `compiled/` (Numba) and `stacked/` (PyTorch). `mixed_networks.py` chooses
  one, and combines hosts of different kinds. Tests compare both backends with a reference in plain PyTorch.
- As Gymnasium's: `env.py` (a fleet of one), `vector_env.py` (a fleet), `rendering/`. `actors/gym` registers them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actors.env.env import SeedTrainingEnv


def make_env(
    run_seed: int = 0, strict: bool = False, render_mode: str | None = None, **settings: Any
) -> SeedTrainingEnv:
    """Make one seed-training environment; `settings` are fields of `EnvConfig`, such as `tasks=("spirals",)`."""
    from actors.config import EnvConfig
    from actors.env.env import SeedTrainingEnv

    return SeedTrainingEnv(EnvConfig(**settings), run_seed, strict, render_mode=render_mode)
