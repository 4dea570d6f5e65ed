"""The endpoint of a run with external environments: it serves the newest weights and ships what is played there."""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing
from pathlib import Path

import torch

from actors.errors import UserError
from actors.serving.options import ServeOptions
from actors.serving.server.server import PolicyServer, serve
from actors.transport.redis import connect
from actors.transport.retry import Retry
from actors.workers.episode_shipper import EpisodeShipper
from deploy.config.schema import Config
from deploy.launch.process_settings import namespace
from deploy.launch.server_log import configure_log

SHIP_S = 10.0  # for the last episodes, after the endpoint has stopped
WATCH_S = 0.5


def serve_endpoint(config: Config) -> int:
    """Serve until SIGTERM or SIGINT; episodes in progress are then cut and shipped. Returns 0. Raises `UserError`."""
    external, run = config.external, namespace(config)
    configure_log("json", logging.WARNING)
    torch.set_num_threads(1)
    with closing(Retry()(lambda: connect(config.run.redis, config.queue, run))) as transport:
        shipper = EpisodeShipper(transport, run, config.actors.buffer_episodes)

        async def started(server: PolicyServer) -> None:
            print(f"endpoint of run {run!r}: environments play at {server.address}", flush=True)
            asyncio.get_running_loop().create_task(stop_on_error(server, shipper), name="watch-shipper")

        asyncio.run(serve(serve_options(config), transport, started, external, shipper))
        left = shipper.close(SHIP_S)
    if shipper.error is not None:
        raise UserError(f"episodes can no longer be shipped: {shipper.error}") from shipper.error
    print(f"endpoint: stopped; {left} episodes unsent", flush=True)
    return 0


async def stop_on_error(server: PolicyServer, shipper: EpisodeShipper) -> None:
    """Stop the server if the shipper fails, so that a new process replaces both."""
    while shipper.error is None:
        await asyncio.sleep(WATCH_S)
    server.stop.set()


def serve_options(config: Config) -> ServeOptions:
    """Return the options of the endpoint's server."""
    external = config.external

    def path(name: str) -> Path | None:
        return Path(name) if name else None

    return ServeOptions(
        listen=external.listen,
        max_sessions=external.max_sessions,
        session_ttl_s=external.session_timeout_s,
        first_step_ttl_s=external.session_timeout_s,
        poll_s=0.2,
        max_versions=16,
        tls_cert=path(external.tls_cert),
        tls_key=path(external.tls_key),
        token_file=path(external.token_file),
        metrics_port=config.run.metrics_port or None,
    )
