"""Command-line flags of `tamiyo train`, `learner` and `actors`: a flag for each setting, and a few short ones."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, get_type_hints

from actors.errors import UserError
from deploy.config.parser import FieldParser
from deploy.config.schema import PRESETS, Config, default_preset
from deploy.config.yaml import brief, from_yaml, overlay

EXTERNAL = "external"
SHORT = {
    "run.redis": "--redis",
    "run.address": "--address",
    "run.init_from": "--init_from",
    "env.tasks": "--task",
    "gym.id": "--env",
    "external.spaces": "--spaces",
    "actors.gpus_per_actor": "--gpus_per_actor",
    "learner.total_steps": "--total_steps",
    "learner.stop_at_return": "--stop_at_return",
}
COMMON = (
    "gym.id", "env.tasks", "external.spaces", "run.name", "run.seed", "run.init_from", "run.redis", "run.address",
    "learner.updates", "learner.total_steps", "learner.stop_at_return", "learner.max_seconds", "learner.lr",
    "learner.batch_episodes", "env.points_per_doubling", "actors.count",
)  # fmt: skip
"""Settings that are first in the help."""
DESCRIPTIONS = {
    "train": "Run a training on this machine, or with --address on a Ray cluster.",
    "learner": "Run only the learner; it exchanges data with the actors through --redis URL.",
    "actors": "Run only the actors; they exchange data with the learner through --redis URL.",
}
SOURCES = (
    "Settings come from the preset or the resumed run, then from the YAML file, then from flags. In brackets: the "
    "values of preset tamiyo. Switches take true or false: --env.prune false is --env.no-prune. "
    "docs/reference/configuration.md says more on each setting."
)
COLUMNS, NAME_COLUMNS = 100, 27


class ParsedFlags(NamedTuple):
    """The result of parsing a command line."""

    config: Config
    resume: Path | None
    in_process: bool = False
    show: bool = False  # print the settings, and do nothing else


def parse(command: str, args: list[str]) -> ParsedFlags:
    """Parse the flags of a command. Raises `UserError` for invalid flags, and `SystemExit(0)` after printing help."""
    flags, values = SettingsParser(command).given(args)
    external = values.get("gym.id") == EXTERNAL
    if external:
        del values["gym.id"]
    base = _base(flags, values)
    sections: dict[str, dict[str, object]] = {}
    for name, value in values.items():
        section, _, key = name.partition(".")
        sections.setdefault(section, {})[key] = value
    config = overlay(base, sections)
    if external and not config.external.spaces:
        raise UserError("--env external needs --spaces FILE.json: the spaces of your environment")
    if flags.resume is not None and "run.init_from" in values:
        raise UserError("--init-from and --resume are mutually exclusive: a resumed run already has weights")
    return ParsedFlags(config, flags.resume, flags.in_process, flags.show_settings)


class SettingsParser(FieldParser):
    """The parser of a command that takes all settings."""

    def __init__(self, command: str) -> None:
        super().__init__(command, DESCRIPTIONS[command])
        self.set_defaults(resume=None, in_process=False)
        self.add_argument("--preset", help=f"Base settings: {', '.join(PRESETS)} (default for other environments).")
        self.add_argument("--config", type=Path, help="YAML file with settings that override the preset.")
        shown = "Print all settings in force as YAML, a file for --config, and do nothing else."
        self.add_argument("--show_settings", action="store_true", help=shown)
        if command != "actors":
            self.add_argument("--resume", type=Path, help="Run folder to continue, or a checkpoint to roll back to.")
        if command == "train":
            one_process = "Actor and learner take turns in this process, for a debugger: no Ray."
            self.add_argument("--in_process", action="store_true", help=one_process)
        for section, cls in get_type_hints(Config).items():
            self.add_fields(cls, section, SHORT)

    def format_help(self) -> str:
        """Return the settings in one or two lines each: common ones first, then those of each section."""
        actions = [action for action in self._actions if action.help is not argparse.SUPPRESS]
        settings = {action.dest: action for action in actions if "." in action.dest}
        lines = [f"usage: {self.prog} [FLAG VALUE ...]", "", textwrap.fill(f"{self.description} {SOURCES}", COLUMNS)]
        lines += ["", "common:"]
        for action in (*(a for a in actions if "." not in a.dest), *(settings[name] for name in COMMON)):
            lines += _described(action)
        for section in get_type_hints(Config):
            lines += ["", f"{section}:"]
            for name, action in settings.items():
                lines += _described(action) if name.startswith(f"{section}.") and name not in COMMON else []
        return "\n".join(lines) + "\n"


def _described(action: argparse.Action) -> list[str]:
    """Return the lines of the help for a flag: its name and the first sentence on it."""
    flag, text = action.option_strings[-1], (action.help or "").replace("%%", "%").partition(". ")[0].rstrip(".")
    if "." in action.dest:
        section, _, key = action.dest.partition(".")
        value = getattr(getattr(PRESETS["tamiyo"].in_force, section), key)
        shown = f" [{brief(key, value)}]" if value is not None and value not in ("", ()) else ""
        flag, text = action.option_strings[0], text + shown
    flag = flag if "." in flag else flag.replace("_", "-")  # both are read
    left, width = f"  {flag:{NAME_COLUMNS}}", COLUMNS - NAME_COLUMNS - 3
    if len(left) > NAME_COLUMNS + 2:
        return textwrap.wrap(f"{left} {text}", COLUMNS, subsequent_indent=" " * (NAME_COLUMNS + 3))
    first, *rest = textwrap.wrap(text, width)
    return [f"{left} {first}", *(f"{'':{NAME_COLUMNS + 2}} {line}" for line in rest)]


def _base(flags: argparse.Namespace, given: Mapping[str, object]) -> Config:
    if flags.preset is not None and flags.preset not in PRESETS:
        raise UserError(f"unknown preset {flags.preset!r}: give one of {', '.join(sorted(PRESETS))}")
    env = str(given.get("external.spaces") or given.get("gym.id") or "")
    base = PRESETS[flags.preset] if flags.preset else None
    if flags.resume is not None:
        if flags.preset is not None:
            raise UserError("--preset and --resume are mutually exclusive: a resumed run keeps its settings")
        run_dir = resumed_folder(flags.resume)
        if not (run_dir / "config.yaml").is_file():
            raise UserError(f"cannot resume: {run_dir} is not a run folder (it has no config.yaml)")
        base = from_yaml(run_dir / "config.yaml")
    if flags.config is not None:
        base = from_yaml(flags.config, base, env)
    return base or PRESETS[default_preset({}, env)]


def resumed_folder(resume: Path) -> Path:
    """Return the run folder that the argument of `--resume` refers to, itself or one of its checkpoints to roll back
    to. Raises `UserError` if it does not exist."""
    if resume.is_file():
        if resume.absolute().parent.name != "checkpoints":
            raise UserError(
                f"cannot resume: {resume} is not in the checkpoints folder of a run; give a run folder or one of its "
                "checkpoints, or start a new run from these weights with --init-from"
            )
        return resume.absolute().parent.parent
    if not resume.is_dir():
        raise UserError(f"cannot resume: run folder {resume} does not exist")
    return resume
