"""Environments in which a policy decides how a small network grows while it trains.

The host is a network that learns a classification task. It has slots; in a slot a seed (a small residual module) can
germinate, train, be blended into the host, and be kept or pruned. One step is one epoch of the host's training.
`make_env` makes one environment; the docstring of `SeedTrainingEnv` is the specification.

Where to read on:

- The rules: `env.py` (the environment, one host at a time), `host_episode.py` (one episode without tensors) and its
  parts in `episode/` (an epoch as data, rewards, the governor that stops broken training, the never-grow twin as a
  baseline), `slots/` (stages, legal actions, contributions, observation); `actors/rng.py` (seeding).
- The networks: `hosts/` (MLP, 1-D and 2-D CNN), `blueprints/` (what seeds can be, how they are blended), `layers/`,
  and `reference_network.py`, which trains a host with its seeds in plain PyTorch.
- The data: `tasks/`.
- Many environments at once: `fleet.py` (the interface, and a loop over the reference), `seed_fleet.py` (the fast
  fleet), `vector_env.py` (the fast fleet as a Gymnasium `VectorEnv`). The fast fleet trains its hosts through the
  interface in `fleet_networks.py`, which has two backends: `kernels/` (Numba) and `stacked/` (PyTorch).
  `network_factory.py` chooses one, `mixed_networks.py` combines hosts of different kinds. Tests compare both backends
  with the reference network.
- Around them: `rendering/`; `actors/gym` (registration, and other Gymnasium environments as fleets).
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
