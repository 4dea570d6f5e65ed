"""Tamiyo: grow small networks while they train. This module is the whole public interface.

    import tamiyo

    tamiyo.train(tamiyo.PRESETS["quick"])       # the one-machine launch, as `tamiyo train` does it
    policy = tamiyo.load_policy("runs/my-run")  # a trained policy
    client = tamiyo.PolicyClient("host:50051")  # the same policy, served by `tamiyo serve`
    env = tamiyo.make_env()                     # the seed-training environment
    grower = tamiyo.GrowthController(...)       # grows your own model in your own training loop

Importing it registers `tamiyo/SeedTraining-v0` with Gymnasium, for `gymnasium.make` and `make_vec`. Names are imported
on first use, so that importing this module loads neither torch nor Ray.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from actors.env.registration import register_envs

if TYPE_CHECKING:
    from actors.env import make_env
    from actors.growth.controller import GrowthController
    from actors.growth.lightning import GrowthCallback
    from actors.growth.slots import SlotSpec
    from actors.serving.client.asynchronous import AsyncPolicyClient
    from actors.serving.client.blocking import PolicyClient
    from actors.serving.client.local import LocalPolicy
    from deploy.config.schema import PRESETS, Config
    from deploy.launch.local import train
    from learner.checkpoint import load_policy

__all__ = [
    "PRESETS",
    "AsyncPolicyClient",
    "Config",
    "GrowthCallback",
    "GrowthController",
    "LocalPolicy",
    "PolicyClient",
    "SlotSpec",
    "load_policy",
    "make_env",
    "train",
]

_HOMES = {
    "GrowthCallback": "actors.growth.lightning",
    "GrowthController": "actors.growth.controller",
    "SlotSpec": "actors.growth.slots",
    "AsyncPolicyClient": "actors.serving.client.asynchronous",
    "LocalPolicy": "actors.serving.client.local",
    "PolicyClient": "actors.serving.client.blocking",
    "Config": "deploy.config.schema",
    "PRESETS": "deploy.config.schema",
    "train": "deploy.launch.local",
    "load_policy": "learner.checkpoint",
    "make_env": "actors.env",
}

register_envs()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tamiyo' has no attribute {name!r}; it offers {', '.join(__all__)}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
