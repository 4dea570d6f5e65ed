"""`tamiyo dashboards FOLDER`: copy the dashboards and alert rules of `deploy/grafana`, which Grafana provisions."""

from __future__ import annotations

import shutil
from pathlib import Path

from actors.errors import UserError

GRAFANA = Path(__file__).parents[2] / "grafana"


def write_dashboards(folder: Path, alerts: Path | None = None) -> int:
    """Copy the dashboards to `folder` and, if `alerts` is given, the alert rules to that folder.

    Raises `UserError` if a folder cannot be written.
    """
    _copy(GRAFANA / "dashboards", folder)
    if alerts is not None:
        _copy(GRAFANA / "provisioning" / "alerting", alerts)
    return 0


def _copy(source: Path, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in sorted(source.iterdir()):
            print(shutil.copyfile(file, folder / file.name))
    except OSError as error:
        raise UserError(f"cannot write to {folder} ({error.strerror}): give another folder") from error
