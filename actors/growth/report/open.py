"""`open_report`: where a training run is reported to, by `GrowthConfig.report`."""

from __future__ import annotations

import logging
from pathlib import Path

from actors.errors import UserError
from actors.growth.report.endpoint_report import EndpointReport
from actors.growth.report.file_report import DEFAULT_FOLDER, FileReport
from actors.growth.report.run_report import RunReport
from actors.sessions.refusal import Reason
from actors.sessions.session import PolicyError, SessionOpener, TrainingOpener
from actors.slots.objective import Prices
from actors.types.spaces import Spaces

log = logging.getLogger(__name__)


def open_report(
    report: bool | str | Path,
    opener: SessionOpener,
    spaces: Spaces,
    prices: Prices,
    horizon_epochs: int,
    seed: int,
) -> RunReport:
    """Return a report to the endpoint that decides if `report` is True and the endpoint learns from sessions, and else
    a report to a file. Raises `UserError`."""
    if report is True and isinstance(opener, TrainingOpener):
        try:
            return EndpointReport(opener.open_training(spaces, seed), prices, horizon_epochs)
        except PolicyError as error:
            if error.reason == Reason.SPACES_MISMATCH:
                raise UserError(f"this endpoint cannot learn from this model: {error}") from error
            learns_from_none = error.reason in (Reason.NOT_TRAINING, Reason.NOT_PERMITTED)
            level = logging.INFO if learns_from_none else logging.WARNING
            log.log(level, "the run is reported to a file, as the endpoint did not open a session: %s", error)
    folder = Path(DEFAULT_FOLDER) if isinstance(report, bool) else Path(report)
    return FileReport(folder, spaces, prices, horizon_epochs, seed)
