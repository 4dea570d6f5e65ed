"""Tamiyo grows small neural networks while they train. This module is its whole public interface.

    import tamiyo

    tamiyo.train(tamiyo.PRESETS["quick"])       # a run on this machine, as with `tamiyo train`
    policy = tamiyo.load_policy("runs/my-run")  # a trained policy
    client = tamiyo.PolicyClient("host:50051")  # a policy served by `tamiyo serve`
    env = tamiyo.make_env()                     # the seed-training environment
    grower = tamiyo.GrowthController(...)       # grows your own model in your own training loop

Importing it registers `tamiyo/SeedTraining-v0` with Gymnasium, for `gymnasium.make` and `gymnasium.make_vec`. Names are
imported on first use, so importing this module loads neither PyTorch nor Ray.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from actors.gym.registration import register_envs

if TYPE_CHECKING:
    from actors.blueprints.blueprint import Blueprint, Param, Params
    from actors.blueprints.column import ColumnBlueprint
    from actors.blueprints.family import blueprint_index, register_blueprint
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
    from actors.types.actions import Op
    from actors.types.spaces import Spaces
    from deploy.config.schema import PRESETS, Config
    from deploy.launch.local import train
    from deploy.rllib import TamiyoRLModule, register_with_rllib
    from learner.ppo.batch import make_batch
    from learner.ppo.optimizer import make_optimizer
    from learner.ppo.update import PPOUpdate
    from learner.run.checkpoint import load_policy

__all__ = [
    "PRESETS",
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
    "load_policy",
    "make_batch",
    "make_env",
    "make_fleet",
    "make_optimizer",
    "register_blueprint",
    "register_with_rllib",
    "serve_env",
    "train",
]

_MODULES = {
    "GrowthController": "actors.growth.controller",
    "Column": "actors.growth.columns.column",
    "GrowthConfig": "actors.growth.config",
    "GrowthCallback": "actors.growth.lightning",
    "SlotSpec": "actors.growth.slots",
    "Decision": "actors.growth.decision",
    "make_env": "actors.env",
    "SeedAction": "actors.slots.lifecycle",
    "Op": "actors.types.actions",
    "Blueprint": "actors.blueprints.blueprint",
    "ColumnBlueprint": "actors.blueprints.column",
    "Param": "actors.blueprints.blueprint",
    "Params": "actors.blueprints.blueprint",
    "Units": "actors.layers.layer_norm",
    "blueprint_index": "actors.blueprints.family",
    "register_blueprint": "actors.blueprints.family",
    "Sizes": "actors.env.tasks.task",
    "Split": "actors.env.tasks.task",
    "Task": "actors.env.tasks.task",
    "TaskFamily": "actors.env.tasks.family",
    "draw_splits": "actors.env.tasks.task",
    "AsyncClientEpisode": "actors.serving.client.episode",
    "AsyncPolicyClient": "actors.serving.client.asynchronous",
    "PolicyClient": "actors.serving.client.blocking",
    "ClientEpisode": "actors.serving.client.episode",
    "LocalPolicy": "actors.sessions.local",
    "Answer": "actors.sessions.session",
    "PolicyError": "actors.sessions.session",
    "PolicySession": "actors.sessions.session",
    "serve_env": "actors.serving.client.serve_env",
    "Spaces": "actors.types.spaces",
    "UserError": "actors.errors",
    "Config": "deploy.config.schema",
    "PRESETS": "deploy.config.schema",
    "train": "deploy.launch.local",
    "load_policy": "learner.run.checkpoint",
    "make_fleet": "actors.env.seed_fleet",
    "FactoredRecurrentActorCritic": "actors.policy.network",
    "PolicyNoise": "actors.rollout.wave",
    "Recorder": "actors.rollout.recorder",
    "make_batch": "learner.ppo.batch",
    "make_optimizer": "learner.ppo.optimizer",
    "PPOUpdate": "learner.ppo.update",
    "TamiyoRLModule": "deploy.rllib",
    "register_with_rllib": "deploy.rllib",
}

register_envs()


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'tamiyo' has no attribute {name!r}: it exports {', '.join(__all__)}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
