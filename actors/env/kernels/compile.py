"""`compile_kernels`: compiles the kernels once per machine, always in a process of its own.

In the process that compiles them, kernels call functions that were compiled one by one on the way; in a process that
loads them from the cache, they call the copies inside the cached object, which LLVM has optimized once more. The two
round differently. So that all processes compute the same bits, the process that compiles only writes the cache.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys

import numba
import numpy as np

from actors.config import EnvConfig
from actors.env.blueprints.family import blueprint_choices
from actors.env.host_episode import HostEpisode
from actors.env.kernels.cache import cache_dir, is_compiled, mark_compiled
from actors.env.kernels.numba_network import NumbaNetwork
from actors.env.reference_network import OptimizerSettings
from actors.types.actions import seed_action_spec

CHILD = "import sys; sys.path[:] = sys.argv[2:]; from actors.env.kernels.compile import fill_cache as f; f(sys.argv[1])"


def compile_kernels(dtype: str) -> None:
    """Compile all kernels for a dtype and cache them on disk, unless they are: about twenty seconds.

    Processes that need those of one dtype at the same time wait for the first, since Numba's index of cached functions
    has no lock; the other dtype has an index of its own. Raise `CalledProcessError` if the compiling process fails; its
    messages are on standard error.
    """
    if is_compiled(dtype) or numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        return
    with (cache_dir() / f"lock-{dtype}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_compiled(dtype):
            # The order of sets must not decide what code is generated.
            environ = {**os.environ, "PYTHONHASHSEED": "0"}
            subprocess.run([sys.executable, "-c", CHILD, dtype, *sys.path], env=environ, check=True)
            mark_compiled(dtype)


def fill_cache(dtype: str) -> None:
    """Compile all kernels in this process, by training a network for a minibatch."""
    config = EnvConfig(tasks=("spirals",), horizon_epochs=1, inner_steps=1)
    spec = seed_action_spec(config.total_slots, blueprint_choices(), config.profile)
    episode = HostEpisode(config, 0, 0, spec)
    plan, _ = episode.plan_epoch(np.zeros(len(spec.heads), np.int64))
    settings = OptimizerSettings(config.host_lr, config.seed_lr, config.weight_decay, config.clip_norm)
    network = NumbaNetwork(episode, config.column_slots, settings, np.dtype(dtype))
    network.evaluate({}, [frozenset()])
    network.run_epoch(plan)
