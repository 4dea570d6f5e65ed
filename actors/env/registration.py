"""Makes `gymnasium.make("tamiyo/SeedTraining-v0")` and `make_vec` work, once `tamiyo` is imported.

Gymnasium 1.0 gave up loading plugins by entry point, so somebody has to import it: `import tamiyo`, or the prefix in
`gymnasium.make("tamiyo:tamiyo/SeedTraining-v0")`. Nothing heavy may be imported here.
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
