"""Configuration of the acting side: frozen dataclasses, validated on construction."""

from actors.config.checks import ConfigError, require, require_least, require_positive
from actors.config.env import PRICE, EnvConfig
from actors.config.gym import GymConfig
from actors.config.policy import PolicyConfig
from actors.config.pool import ActingConfig, ActorsConfig, QueueConfig

__all__ = [
    "PRICE",
    "ActingConfig",
    "ActorsConfig",
    "ConfigError",
    "EnvConfig",
    "GymConfig",
    "PolicyConfig",
    "QueueConfig",
    "require",
    "require_least",
    "require_positive",
]
