"""The endpoint of a run with external environments: it serves the newest weights and ships what is played there."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from select import select
from typing import BinaryIO

import torch

from actors.config.pool import BUFFER_STEPS
from actors.errors import UserError
from actors.serving.messages import MessageLayout
from actors.serving.options import MAX_MESSAGE_BYTES, ServeOptions
from actors.serving.server.server import PolicyServer, serve
from actors.transport.redis import connect
from actors.transport.retry import Retry
from actors.workers.episode_shipper import EpisodeShipper
from deploy.config.schema import Config
from deploy.config.spaces_file import read_spaces
from deploy.config.yaml import from_yaml
from deploy.launch.process_settings import namespace
from deploy.launch.server_log import configure_log

SHIP_S = 10.0  # for the last episodes, after the endpoint has stopped
WATCH_S = 0.5
MAX_SESSIONS = 1000


def serve_endpoint(config: Config, parent: BinaryIO | None = None) -> int:
    """Serve until SIGTERM or SIGINT, or until the other end of the pipe `parent` is closed. Episodes in progress are
    then cut and shipped. Returns 0. Raises `UserError`."""
    external, run = config.external, namespace(config)
    configure_log("json", logging.WARNING)
    torch.set_num_threads(1)
    waiting = Retry(stop=lambda: parent is not None and bool(select([parent], [], [], 0)[0]))
    with closing(waiting(lambda: connect(config.run.redis, config.queue, run))) as transport:
        shipper = EpisodeShipper(transport, run, BUFFER_STEPS, config.learner.max_policy_lag)

        tasks: list[asyncio.Task[None]] = []  # the loop keeps only weak references

        def started(server: PolicyServer) -> None:
            print(f"endpoint of run {run!r}: environments play at {server.address}", flush=True)
            tasks.append(server.loop.create_task(stop_on_error(server, shipper)))
            if parent is not None:
                server.loop.add_reader(parent, stop_at_end, parent, server.loop, server.stop)

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


def stop_at_end(pipe: BinaryIO, loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Set `stop`: nothing more is written to `pipe`, so it is readable because its other end was closed."""
    # In the event loop: a thread that reads the pipe would hold its lock, and Python aborts if it exits meanwhile.
    loop.remove_reader(pipe)
    stop.set()


def serve_options(config: Config) -> ServeOptions:
    """Return the options of the endpoint's server."""
    external = config.external
    request_bytes = MessageLayout(read_spaces(Path(external.spaces))).request_bytes

    def path(name: str) -> Path | None:
        return Path(name) if name else None

    return ServeOptions(
        listen=external.listen,
        max_sessions=MAX_SESSIONS,
        session_ttl_s=external.session_timeout_s,
        max_versions=16,
        max_message_bytes=max(MAX_MESSAGE_BYTES, request_bytes),
        tls_cert=path(external.tls_cert),
        tls_key=path(external.tls_key),
        token_file=path(external.token_file),
        metrics_port=config.run.metrics_port or None,
    )


def main() -> int:
    """Run the endpoint of the run whose folder is the only argument; the first line of standard input is the URL of its
    store, and its end is the end of the parent. Returns the exit status."""
    run_dir = Path(sys.argv[1])
    try:
        config = from_yaml(run_dir / "config.yaml")
        redis = sys.stdin.buffer.readline().decode().strip()
        named = replace(config.run, redis=redis, name=config.run.name or run_dir.name)
        return serve_endpoint(replace(config, run=named), sys.stdin.buffer)
    except UserError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
