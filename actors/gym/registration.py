"""Registers "tamiyo/SeedTraining-v0" with Gymnasium, when `tamiyo` is imported.

Gymnasium 1.0 no longer loads plugins by entry point. Either `import tamiyo`, or let Gymnasium import it:
`gymnasium.make("tamiyo:tamiyo/SeedTraining-v0")`. This module must not import anything that is slow to import.
"""

from __future__ import annotations

from gymnasium.envs.registration import register, registry

from actors.types.episode import SEED_TRAINING

# `make` and `make_vec` take `run_seed`, `strict` and fields of `EnvConfig`.
if SEED_TRAINING not in registry:
    register(
        id=SEED_TRAINING,
        entry_point="actors.env:make_env",
        vector_entry_point="actors.env.vector_env:SeedTrainingVectorEnv",
    )
