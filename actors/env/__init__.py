"""Seed-training environments: hosts that grow while they train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actors.env.env import SeedTrainingEnv


def make_env(
    run_seed: int = 0, strict: bool = False, render_mode: str | None = None, **settings: Any
) -> SeedTrainingEnv:
    """One seed-training environment; `settings` are fields of `EnvConfig`, such as `tasks=("spirals",)`."""
    from actors.config import EnvConfig
    from actors.env.env import SeedTrainingEnv

    return SeedTrainingEnv(EnvConfig(**settings), run_seed, strict, render_mode=render_mode)
