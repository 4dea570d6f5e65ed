"""Makes `gymnasium.make("tamiyo/SeedTraining-v0")` and `make_vec` work; Gymnasium finds this by its entry point.

Without an installation, `gymnasium.make("actors.env.registration:tamiyo/SeedTraining-v0")` does the same. Gymnasium
imports this while it is imported itself, so nothing heavy may be imported here.
"""

from __future__ import annotations

from gymnasium.envs.registration import register, registry

ENV_ID = "tamiyo/SeedTraining-v0"


def register_envs() -> None:
    """Idempotent. Keyword arguments of `make` and `make_vec` are `run_seed`, `strict` and fields of `EnvConfig`."""
    if ENV_ID not in registry:
        register(
            id=ENV_ID,
            entry_point="actors.env:make_env",
            vector_entry_point="actors.env.vector_env:make_vector_env",
        )


register_envs()
