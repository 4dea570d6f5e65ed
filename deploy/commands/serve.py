"""`tamiyo serve`: serve a checkpoint, a rule, or the weights that a run publishes, until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import sys

import structlog
import torch

from actors.errors import UserError
from actors.serving.server.models import ServedRule
from actors.serving.server.server import FixedWeights, PolicyServer, PolicySource, serve
from actors.transport.redis import connect
from deploy.commands.serve_flags import ServeFlags
from learner.run.checkpoint import load_checkpoint


def run_server(flags: ServeFlags) -> int:
    """Run the server. Returns 0 after a graceful shutdown. Raises `UserError`."""
    if flags.threads < 1:
        raise UserError(f"--threads is {flags.threads}: it must be at least 1")
    torch.set_num_threads(flags.threads)
    configure_log(flags.log)
    source: PolicySource
    if flags.rule is not None:
        source = ServedRule(flags.rule)
    elif flags.checkpoint is not None:
        source = FixedWeights(load_checkpoint(flags.checkpoint).weights)
    else:
        assert flags.redis is not None
        source = connect(flags.redis, namespace=flags.name)

    async def started(server: PolicyServer) -> None:
        print(f"serving on {server.address}", flush=True)

    asyncio.run(serve(flags.options, source, started))
    return 0


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
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # looked up when a logger is created
        cache_logger_on_first_use=True,
    )
