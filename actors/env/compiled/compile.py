"""`compile_kernels`: compiles the kernels of this folder once per machine."""

from __future__ import annotations

import numpy as np

from actors.config import EnvConfig
from actors.env.compiled.numba_network import NumbaNetwork
from actors.env.episode.host_episode import HostEpisode
from actors.kernels.compile import compile_once
from actors.slots.lifecycle import SeedAction
from actors.slots.spaces import seed_spaces
from actors.types.actions import Op


def compile_kernels(dtype: str = "float32") -> None:
    """Compile all kernels for a dtype and cache them on disk, unless they are: about twenty seconds. See
    `compile_once`."""
    compile_once("hosts", __name__, dtype)


def fill_cache(dtype: str) -> None:
    """Compile all kernels in this process, by training a network for a minibatch."""
    config = EnvConfig(tasks=("spirals",), horizon_epochs=1, inner_steps=1)
    episode = HostEpisode(config, 0, 0, seed_spaces(config.total_slots).action)
    plan = episode.plan_epoch(SeedAction(Op.WAIT))
    network = NumbaNetwork(episode, config.column_slots, np.dtype(dtype))
    network.validate({})
    network.run_epoch(plan)
