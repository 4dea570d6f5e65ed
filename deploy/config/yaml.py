"""Read and write settings as YAML, checked field by field against the configuration dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import urlsplit

import yaml
from rich.text import Text

from actors.config import ConfigError
from deploy.config.convert import convert, show, suggest
from deploy.config.schema import PRESETS, Config, closest_preset, default_preset, settings_in_force
from deploy.config.user_file import read_yaml
from learner.run_limits import described

MOST_CHANGES = 12  # of settings, in the summary of a run


def from_yaml(path: Path, base: Config | None = None, env: str | None = None) -> Config:
    """Override `base` with the YAML file at `path`. The default base is the preset for its environment, or for `env`.
    Raises `ConfigError` with the file name and the reason."""
    data = read_yaml(path)
    try:
        return overlay(base or PRESETS[default_preset(data, env)], {} if data is None else data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def to_yaml(config: Config) -> str:
    """Write all settings in force as YAML, which `from_yaml` reads. Passwords in URLs are removed."""
    data: dict[str, dict[str, Any]] = {}
    for name, value in settings_in_force(config).items():
        section, _, key = name.partition(".")
        data.setdefault(section, {})[key] = list(value) if isinstance(value, tuple) else value
    data["run"]["redis"] = without_password(config.run.redis)
    data["run"]["actors_redis"] = without_password(config.run.actors_redis)
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)
    cuts = {"chunk_length": "whole episodes" if config.on_seed_hosts else "whole segments"}
    for name, words in (NULLS | cuts).items():
        text = text.replace(f"\n  {name}: null\n", f"\n  {name}: null  # {words}\n")
    return text


def overlay(base: Config, data: object) -> Config:
    """Override `base` with a mapping of sections. Raises `ConfigError` for an unknown key or an invalid value."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"settings must be sections with keys, such as `learner: {{lr: 0.001}}`, not {show(data)}")
    names, changed = [f.name for f in dataclasses.fields(base)], {}
    for section, values in data.items():
        if section not in names:
            raise ConfigError(f"unknown section {section!r}{suggest(str(section), names)}")
        if values is None:
            continue
        if not isinstance(values, Mapping):
            raise ConfigError(f"section {section!r} must hold keys and values, not {show(values)}")
        settings = getattr(base, section)
        hints = get_type_hints(type(settings))
        for key in values:
            if key not in hints:
                raise ConfigError(f"unknown key {key!r} in section {section!r}{suggest(str(key), list(hints))}")
        given = {key: convert(value, hints[key], f"{section}.{key}") for key, value in values.items()}
        changed[section] = dataclasses.replace(settings, **given)
    return dataclasses.replace(base, **changed)


def summary(config: Config) -> Text:
    """What a run does, in five lines, and the settings in force that differ from the closest preset."""
    preset, learner, text = closest_preset(config), config.in_force.learner, Text()
    usual = settings_in_force(PRESETS[preset])
    changed = [
        f"{name}={brief(name, value)}" for name, value in settings_in_force(config).items() if value != usual[name]
    ]
    named = "  ".join([f"preset {preset}", *changed[:MOST_CHANGES]])
    more = f"  and {len(changed) - MOST_CHANGES} more" if len(changed) > MOST_CHANGES else ""
    where = config.gym.id or config.external.spaces or f"{len(config.env.tasks)} tasks of the seed-training environment"
    least = f" and {learner.batch_steps} steps" if learner.batch_steps else ""
    actors = f"{config.actors.count} actors with {config.actors.envs_per_actor} environments each"
    for name, line in {
        "settings": named + more,
        "trains": f"on {where}" + ("" if config.external.spaces else f", {actors}"),
        "updates": f"of {learner.batch_episodes} episodes{least}, {learner.update_epochs} passes, lr {learner.lr:g}",
        "ends": f"after {described(learner)}; see --total-steps and --stop-at-return",
        "more": "--show-settings prints all settings; config.yaml in the run folder holds them",
    }.items():
        text.append(f"\n{name:9}" if text else f"{name:9}", style="dim").append(line)
    return text


NULLS = {
    "host_width": "by task family",
    "max_seconds": "no limit",
    "total_steps": "no limit",
    "stop_at_return": "no limit",
    "value_clip": "off",
    "target_kl": "no stop",
}
"""What null means, by the names of settings."""


def brief(name: str, value: object) -> str:
    """Return a value in few letters, without a password."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if name.endswith("_bytes") and isinstance(value, int) and value >= 2**20:
        return f"{value / 2**20:g}MiB"
    if isinstance(value, float):
        return f"{value:g}"
    if value is None:
        return "null"
    return (without_password(value, "***") or "auto") if isinstance(value, str) else str(value)


def without_password(url: str, mask: str = "") -> str:
    """Return a URL with `mask` in place of its password, or without it."""
    parts = urlsplit(url)
    if not parts.password:
        return url
    url = url.translate(dict.fromkeys(map(ord, "\t\r\n")))  # which urlsplit leaves out as well
    login = parts.netloc.rpartition("@")[0]
    user = login.partition(":")[0] + (f":{mask}" if mask else "")
    return url.replace(f"{login}@", f"{user}@" if user else "", 1)
