"""`tamiyo dashboards FOLDER`: write dashboards and alert rules as Grafana provisioning files."""

from __future__ import annotations

import json
from pathlib import Path

from actors.errors import UserError
from deploy.dashboards.alerts import alert_rules
from deploy.dashboards.grafana import dashboards

ALERT_FILE = "tamiyo.json"


def write_dashboards(folder: Path, alerts: Path | None = None) -> int:
    """Write one file per dashboard to `folder` and, if `alerts` is given, the alert rules to that folder.

    Raises `UserError` if a folder cannot be written.
    """
    _write(folder, texts())
    if alerts is not None:
        _write(alerts, {ALERT_FILE: _text(alert_rules())})
    return 0


def _write(folder: Path, files: dict[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
            print(folder / name)
    except OSError as error:
        raise UserError(f"cannot write to {folder} ({error.strerror}): give another folder") from error


def texts() -> dict[str, str]:
    """The content of each dashboard file by its name."""
    return {f"{name}.json": _text(board) for name, board in dashboards().items()}


def _text(content: object) -> str:
    return json.dumps(content, indent=1) + "\n"
