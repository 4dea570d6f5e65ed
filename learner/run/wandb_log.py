"""Metrics of a run in Weights & Biases (extra `wandb`)."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from actors.errors import UserError

PRIVATE = ("run", "queue")  # sections that hold addresses


class WandbLog:
    """Writes to one Weights & Biases run per run folder, also after a restart of the learner. Rows of updates that are
    repeated after a crash appear twice. WANDB_MODE=offline keeps everything in `run_dir/wandb`."""

    def __init__(self, project: str, run_dir: Path) -> None:
        """Raises `UserError` if the package is missing or its server refuses the run."""
        try:
            import wandb
        except ImportError as error:
            raise UserError("run.wandb needs wandb: pip install 'tamiyo[wandb]', or leave out run.wandb") from error
        try:
            self._run = wandb.init(
                project=project,
                name=run_dir.name,
                id=_run_id(run_dir),
                resume="allow",
                dir=str(run_dir),
                config=_settings(run_dir),
                settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
            )
        except wandb.Error as error:
            raise UserError(
                f"Weights & Biases refuses the run ({' '.join(str(error).split())}): set WANDB_API_KEY, or "
                "WANDB_MODE=offline, or leave out run.wandb"
            ) from error
        self._run.define_metric("*", step_metric="update")

    def write(self, update: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"update": update, **metrics})

    def close(self) -> None:
        self._run.finish()


def _run_id(run_dir: Path) -> str:
    path = run_dir / "wandb_id"
    if not path.exists():
        path.write_text(secrets.token_hex(8))
    return path.read_text()


def _settings(run_dir: Path) -> dict[str, Any]:
    path = run_dir / "config.yaml"
    sections = yaml.safe_load(path.read_text("utf-8")) if path.exists() else {}
    return {section: fields for section, fields in sections.items() if section not in PRIVATE}
