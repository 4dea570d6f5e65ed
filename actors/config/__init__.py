"""Configuration of the acting side: frozen dataclasses, validated on construction."""

from actors.config.checks import ConfigError, require, require_least, require_positive, span
from actors.config.env import FEATURE_GROUPS, MAX_SLOTS, PRICE, EnvConfig
from actors.config.gym import GymConfig
from actors.config.policy import MAX_FLOOR_MASS, MAX_LAYERS, MAX_WIDTH, PolicyConfig
from actors.config.pool import (
    BUFFER_STEPS,
    MAX_REDIS_VALUE_BYTES,
    REDIS_SCHEMES,
    ActingConfig,
    ActorsConfig,
    QueueConfig,
)

__all__ = [
    "BUFFER_STEPS",
    "FEATURE_GROUPS",
    "MAX_FLOOR_MASS",
    "MAX_LAYERS",
    "MAX_REDIS_VALUE_BYTES",
    "MAX_SLOTS",
    "MAX_WIDTH",
    "PRICE",
    "REDIS_SCHEMES",
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
    "span",
]
