"""`tamiyo dashboards FOLDER`: the dashboards as files that Grafana takes."""

from __future__ import annotations

import json
from pathlib import Path

from actors.errors import UserError
from deploy.dashboards.grafana import dashboards


def write_dashboards(folder: Path) -> int:
    """A file for each; raises `UserError` for a folder that cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts().items():
            (folder / name).write_text(text, encoding="utf-8")
            print(folder / name)
    except OSError as error:
        raise UserError(f"cannot write to {folder} ({error.strerror}): give another folder") from error
    return 0


def texts() -> dict[str, str]:
    """File name to content."""
    return {f"{name}.json": json.dumps(board, indent=1) + "\n" for name, board in dashboards().items()}
