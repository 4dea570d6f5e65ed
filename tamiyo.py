"""Tamiyo grows small neural networks while they train. This module is its whole public interface.

    import tamiyo

    tamiyo.train(tamiyo.PRESETS["quick"])       # a run on this machine, as with `tamiyo train`
    policy = tamiyo.load_policy("runs/my-run")  # a trained policy: policy.act(obs)
    client = tamiyo.PolicyClient("host:50051")  # a policy served by `tamiyo serve`
    env = tamiyo.make_env()                     # the seed-training environment
    grower = tamiyo.GrowthController(...)       # grows your own model in your own training loop

Importing it registers `tamiyo/SeedTraining-v0` with Gymnasium, for `gymnasium.make` and `gymnasium.make_vec`. Names are
imported on first use, so importing this module loads neither PyTorch nor Ray.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actors.blueprints.blueprint import Blueprint, Param, Params
    from actors.blueprints.family import ColumnBlueprint, blueprint_index, register_blueprint
    from actors.env import make_env
    from actors.env.seed_fleet import make_fleet
    from actors.env.tasks.family import TaskFamily
    from actors.env.tasks.task import Sizes, Split, Task, draw_splits
    from actors.errors import UserError
    from actors.growth.columns.column import Column
    from actors.growth.config import GrowthConfig
    from actors.growth.controller import GrowthController
    from actors.growth.decision import Decision
    from actors.growth.lightning import GrowthCallback
    from actors.growth.saving import load_grown, save_grown
    from actors.growth.slots import SlotSpec
    from actors.layers.layer_norm import Units
    from actors.policy.network import FactoredRecurrentActorCritic
    from actors.rollout.recorder import Recorder
    from actors.rollout.wave import PolicyNoise
    from actors.serving.client.asynchronous import AsyncPolicyClient
    from actors.serving.client.blocking import PolicyClient
    from actors.serving.client.episode import AsyncClientEpisode, ClientEpisode
    from actors.serving.client.serve_env import serve_env
    from actors.sessions.local import LocalPolicy
    from actors.sessions.session import Answer, PolicyError, PolicySession
    from actors.slots.lifecycle import SeedAction
    from actors.types.actions import ActionMasks, Op
    from actors.types.spaces import Spaces
    from deploy.config.schema import PRESETS, Config
    from deploy.launch.local import train
    from deploy.loaded_policy import LoadedPolicy, load_policy
    from deploy.rllib import TamiyoRLModule, register_with_rllib
    from learner.ppo.batch import make_batch
    from learner.ppo.optimizer import make_optimizer
    from learner.ppo.update import PPOUpdate

__all__ = [
    "PRESETS",
    "ActionMasks",
    "Answer",
    "AsyncClientEpisode",
    "AsyncPolicyClient",
    "Blueprint",
    "ClientEpisode",
    "Column",
    "ColumnBlueprint",
    "Config",
    "Decision",
    "FactoredRecurrentActorCritic",
    "GrowthCallback",
    "GrowthConfig",
    "GrowthController",
    "LoadedPolicy",
    "LocalPolicy",
    "Op",
    "PPOUpdate",
    "Param",
    "Params",
    "PolicyClient",
    "PolicyError",
    "PolicyNoise",
    "PolicySession",
    "Recorder",
    "SeedAction",
    "Sizes",
    "SlotSpec",
    "Spaces",
    "Split",
    "TamiyoRLModule",
    "Task",
    "TaskFamily",
    "Units",
    "UserError",
    "blueprint_index",
    "draw_splits",
    "load_grown",
    "load_policy",
    "make_batch",
    "make_env",
    "make_fleet",
    "make_optimizer",
    "register_blueprint",
    "register_with_rllib",
    "save_grown",
    "serve_env",
    "train",
]

_NAMES = {
    "actors.blueprints.blueprint": "Blueprint Param Params",
    "actors.blueprints.family": "ColumnBlueprint blueprint_index register_blueprint",
    "actors.env": "make_env",
    "actors.env.seed_fleet": "make_fleet",
    "actors.env.tasks.family": "TaskFamily",
    "actors.env.tasks.task": "Sizes Split Task draw_splits",
    "actors.errors": "UserError",
    "actors.growth.columns.column": "Column",
    "actors.growth.config": "GrowthConfig",
    "actors.growth.controller": "GrowthController",
    "actors.growth.decision": "Decision",
    "actors.growth.lightning": "GrowthCallback",
    "actors.growth.saving": "load_grown save_grown",
    "actors.growth.slots": "SlotSpec",
    "actors.layers.layer_norm": "Units",
    "actors.policy.network": "FactoredRecurrentActorCritic",
    "actors.rollout.recorder": "Recorder",
    "actors.rollout.wave": "PolicyNoise",
    "actors.serving.client.asynchronous": "AsyncPolicyClient",
    "actors.serving.client.blocking": "PolicyClient",
    "actors.serving.client.episode": "AsyncClientEpisode ClientEpisode",
    "actors.serving.client.serve_env": "serve_env",
    "actors.sessions.local": "LocalPolicy",
    "actors.sessions.session": "Answer PolicyError PolicySession",
    "actors.slots.lifecycle": "SeedAction",
    "actors.types.actions": "ActionMasks Op",
    "actors.types.spaces": "Spaces",
    "deploy.config.schema": "Config PRESETS",
    "deploy.launch.local": "train",
    "deploy.loaded_policy": "LoadedPolicy load_policy",
    "deploy.rllib": "TamiyoRLModule register_with_rllib",
    "learner.ppo.batch": "make_batch",
    "learner.ppo.optimizer": "make_optimizer",
    "learner.ppo.update": "PPOUpdate",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def load_packages() -> None:
    """Load the packages beside this file, so that a file of yours with one of their names, such as a `deploy.py`, does
    not take its place."""
    folder = str(Path(__file__).parent)
    for name in ("actors", "learner", "deploy"):
        loaded = sys.modules.get(name)
        if loaded is not None and not hasattr(loaded, "__path__"):
            raise ImportError(f"tamiyo has a package {name!r}, and your module of that name is loaded: rename yours")
        spec = PathFinder.find_spec(name, [folder])
        if loaded is None and spec is not None and spec.loader is not None:
            sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])


load_packages()
import_module("actors.gym.registration")


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'tamiyo' has no attribute {name!r}: it exports {', '.join(__all__)}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
