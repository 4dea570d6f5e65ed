"""The log of a policy server on standard error."""

from __future__ import annotations

import logging
import sys

import structlog


def configure_log(log_format: str, level: int = logging.INFO) -> None:
    """Log events to standard error, one line each, as JSON or in a readable format."""
    renderer = structlog.processors.JSONRenderer() if log_format == "json" else structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([structlog.processors.format_exc_info] if log_format == "json" else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # Looked up when a logger is created. It writes a line at once, which those of other workers do not interrupt.
        logger_factory=lambda *_: structlog.WriteLogger(sys.stderr),
        cache_logger_on_first_use=True,
    )
