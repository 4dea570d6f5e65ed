"""`tamiyo serve`: weights from a checkpoint or a run's store, the log, and the server until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import sys

import structlog
import torch

from actors.errors import UserError
from actors.serving.server.server import Fixed, PolicyServer, Source, serve
from actors.transport.redis import connect
from deploy.commands.serve_flags import ServeFlags
from learner.checkpoint import load_checkpoint


def run_server(flags: ServeFlags) -> int:
    """Returns 0 after an orderly end. Raises `UserError`."""
    if flags.threads < 1:
        raise UserError(f"--threads is {flags.threads}: at least 1")
    torch.set_num_threads(flags.threads)
    set_up_log(flags.log)
    source: Source
    if flags.checkpoint is not None:
        source = Fixed(load_checkpoint(flags.checkpoint).weights)
    else:
        assert flags.redis is not None
        source = connect(flags.redis, namespace=flags.name)

    async def started(server: PolicyServer) -> None:
        print(f"serving on {server.address}", flush=True)

    asyncio.run(serve(flags.options, source, started))
    return 0


def set_up_log(form: str, level: int = logging.INFO) -> None:
    """A line an event on standard error, as JSON or for people."""
    render = structlog.processors.JSONRenderer() if form == "json" else structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([structlog.processors.format_exc_info] if form == "json" else []),
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # as it stands when a server is made
        cache_logger_on_first_use=True,
    )
