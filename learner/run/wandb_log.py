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
    """Writes to one Weights & Biases run per run folder, also after a restart of the learner. Records of updates that
    are repeated after a crash appear twice. WANDB_MODE=offline keeps everything in `run_dir/wandb`."""

    def __init__(self, project: str, run_dir: Path) -> None:
        """Raises `UserError` if the package is missing or its server refuses the run."""
        try:
            import wandb
        except ImportError as error:
            raise UserError("run.wandb needs wandb: pip install 'tamiyo[wandb]', or leave out run.wandb") from error
        name, path = run_dir / "wandb_id", run_dir / "config.yaml"
        if not name.exists():
            name.write_text(secrets.token_hex(8))
        sections: dict[str, Any] = yaml.safe_load(path.read_text("utf-8")) if path.exists() else {}
        try:
            self._run = wandb.init(
                project=project,
                name=run_dir.name,
                id=name.read_text(),
                resume="allow",
                dir=str(run_dir),
                config={section: fields for section, fields in sections.items() if section not in PRIVATE},
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
