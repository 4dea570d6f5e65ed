"""`open_report`: where a training run is reported to, by `GrowthConfig.report`."""

from __future__ import annotations

import logging
from pathlib import Path

from actors.errors import UserError
from actors.growth.report.endpoint_report import EndpointReport, TrainingSession, training_session
from actors.growth.report.file_report import DEFAULT_FOLDER, FileReport
from actors.serving.client.blocking import PolicyClient
from actors.serving.client.session import PolicyError, SessionOpener
from actors.serving.refusal import Reason
from actors.types.spaces import Spaces

log = logging.getLogger(__name__)


def open_report(
    report: bool | str | Path,
    opener: SessionOpener,
    spaces: Spaces,
    points_per_doubling: float,
    horizon_epochs: int,
    seed: int,
) -> FileReport | EndpointReport:
    """Return a report to the endpoint that decides if `report` is True and the endpoint learns from sessions, and else
    a report to a file. Raises `UserError`."""
    session = _session(opener, spaces, seed) if report is True and isinstance(opener, PolicyClient) else None
    if session is not None:
        return EndpointReport(session, points_per_doubling, horizon_epochs)
    folder = Path(DEFAULT_FOLDER) if isinstance(report, bool) else Path(report)
    return FileReport(folder, spaces, points_per_doubling, horizon_epochs, seed)


def _session(client: PolicyClient, spaces: Spaces, seed: int) -> TrainingSession | None:
    try:
        return training_session(client, spaces, seed)
    except PolicyError as error:
        if error.reason == Reason.SPACES_MISMATCH:
            raise UserError(f"this endpoint cannot learn from this model: {error}") from error
        log.warning("the run is reported to a file, as the endpoint did not open a session: %s", error)
        return None
