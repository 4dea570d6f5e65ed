"""`tamiyo dashboards FOLDER`: dashboards and alert rules as files that Grafana takes."""

from __future__ import annotations

import json
from pathlib import Path

from actors.errors import UserError
from deploy.dashboards.alerts import alert_rules
from deploy.dashboards.grafana import dashboards

ALERT_FILE = "tamiyo.json"


def write_dashboards(folder: Path, alerts: Path | None = None) -> int:
    """A file for each dashboard and, where a folder is given for it, one of alert rules; raises `UserError` for a
    folder that cannot be written."""
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
    """File name to content, of the dashboards."""
    return {f"{name}.json": _text(board) for name, board in dashboards().items()}


def _text(content: object) -> str:
    return json.dumps(content, indent=1) + "\n"
