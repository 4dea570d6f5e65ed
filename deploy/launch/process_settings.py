"""Settings of the processes of a run, derived from its configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urlsplit

from actors.codec import MAX_DIMENSION, largest_episode_bytes
from actors.config import ActingConfig, require
from actors.config.pool import MAX_REDIS_VALUE_BYTES
from actors.env.episode.host_episode import check_tasks
from actors.env.tasks import find_family
from actors.gym.make import gym_converter
from actors.policy.state import StateSizes
from actors.slots.spaces import seed_spaces
from actors.transport.redis_server import PASSWORD_VARIABLE, password_from
from actors.types.spaces import Spaces
from deploy.config.advice import advice
from deploy.config.schema import Config
from deploy.config.spaces_file import read_spaces
from learner.service import LearnerSettings

ACTORS_PASSWORD_VARIABLE = "TAMIYO_ACTORS_REDIS_PASSWORD"


def namespace(config: Config) -> str:
    """Return the namespace of the run in Redis, which its learner and its actors share."""
    return config.run.name or "tamiyo"


def acting(config: Config) -> ActingConfig:
    """Return the part of the configuration that actors need."""
    actors = replace(config.actors, max_count=config.most_actors)
    return ActingConfig(config.env, config.gym, config.policy, actors, config.queue, config.learner.episodes_per_seed)


def checked_spaces(config: Config) -> Spaces:
    """Return the spaces of the environment. Raises `UserError` if it does not exist or cannot be trained on."""
    if config.gym.id:
        spaces, setting, steps = gym_converter(config.gym).spaces, "gym.max_segment_steps", config.gym.max_segment_steps
    elif config.external.spaces:
        spaces, steps = read_spaces(Path(config.external.spaces)), config.external.max_segment_steps
        setting = "external.max_segment_steps"
    else:
        check_tasks(config.env, config.run.seed)
        _check_gpus(config)
        spaces = seed_spaces(config.env.total_slots, config.env.profile)
        setting, steps = "env.horizon_epochs", config.env.max_horizon_epochs
    floats, stride = StateSizes.from_config(config.policy).floats, config.learner.state_stride
    limit = config.queue.max_episode_bytes
    needed = largest_episode_bytes(spaces, steps, floats, stride, config.learner.burn_in)
    require(steps <= MAX_DIMENSION, f"{setting} is {steps}: an episode has at most {MAX_DIMENSION} steps")
    require(
        needed <= limit,
        f"{setting} is {steps}: an episode would take up to {needed} bytes, more than queue.max_episode_bytes "
        f"({limit}), and be rejected. Lower {setting}, or raise queue.max_episode_bytes "
        f"(up to {MAX_REDIS_VALUE_BYTES})",
    )
    return spaces


def _check_gpus(config: Config) -> None:
    """Raise `ConfigError` if hosts need a GPU that no actor reserves, or if actors reserve one that no host uses."""
    env, share = config.env, config.actors.gpus_per_actor
    require(
        env.device != "cuda" or share > 0,
        "env.device is cuda, but actors see only GPUs that they reserve, and actors.gpus_per_actor is 0: give a share, "
        "such as --gpus-per-actor 0.25, or leave env.device at auto",
    )
    idle = env.device == "cpu" or (
        env.device == "auto" and env.backend != "torch" and all(find_family(t).kind == "vector" for t in env.tasks)
    )
    require(
        share == 0 or not idle,
        f"actors.gpus_per_actor is {share:g}, but no host would use a GPU, because MLP hosts are faster on a CPU: "
        "leave it out, or set env.device to cuda",
    )


def learner_settings(config: Config, run_dir: Path) -> LearnerSettings:
    """Return the settings of the learner process."""
    return LearnerSettings(
        config.learner,
        config.policy,
        config.queue,
        checked_spaces(config),
        str(run_dir),
        config.run.seed,
        config.run.redis,
        namespace(config),
        config.run.wandb,
        config.run.init_from,
        tuple(advice(config)),
    )


def with_passwords(config: Config) -> Config:
    """Insert passwords from environment variables into the URLs, for machines without these variables.

    The result must not be printed or written to the run folder.
    """
    redis = _with_password(config.run.redis, PASSWORD_VARIABLE)
    run = replace(config.run, redis=redis, actors_redis=actors_redis(config) if config.run.actors_redis else "")
    return replace(config, run=run)


def actors_redis(config: Config) -> str:
    """Return the URL by which actors reach the server of a run, for processes without the variable of its password."""
    return _with_password(config.run.actors_redis, ACTORS_PASSWORD_VARIABLE) or config.run.redis


def _with_password(url: str, variable: str) -> str:
    parts, password = urlsplit(url), password_from(variable)
    if not url or parts.password or not password:
        return url
    user, _, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}").geturl()
