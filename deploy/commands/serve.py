"""`tamiyo serve`: serve a checkpoint, a rule, or the weights that a run publishes, until SIGTERM."""

from __future__ import annotations

import asyncio

import torch

from actors.errors import UserError
from actors.policy.saved import find_policy, read_weights
from actors.serving.server.models import ServedRule
from actors.serving.server.server import PolicyServer, PolicySource, serve
from actors.transport.redis import Transport, connect
from deploy.commands.serve_flags import ServeFlags
from deploy.launch import kernels
from deploy.launch.server_log import configure_log
from deploy.launch.supervision.server_workers import run_workers


def run_server(flags: ServeFlags) -> int:
    """Run the server. Returns 0 after a graceful shutdown. Raises `UserError`, and `SystemExit` if it had workers."""
    if flags.threads < 1:
        raise UserError(f"--threads is {flags.threads}: it must be at least 1")
    torch.set_num_threads(flags.threads)
    configure_log(flags.log)
    source = _source(flags)

    def started(server: PolicyServer) -> None:
        print(f"no weights yet; listening on {server.address}", flush=True)

    def loaded(server: PolicyServer) -> None:
        print(f"serving on {server.address}", flush=True)

    if flags.workers == 1:
        asyncio.run(serve(flags, source, started, loaded=loaded))
        return 0
    if isinstance(source, Transport):
        source.close()  # its address is right; each worker connects by itself
    kernels.load(kernels.POLICY)
    run_workers(flags, lambda: _source(flags) if flags.redis else source, started)
    return 0


def _source(flags: ServeFlags) -> PolicySource:
    if flags.rule is not None:
        return ServedRule(flags.rule)
    if flags.checkpoint is not None:
        return read_weights(find_policy(flags.checkpoint, flags.latest))
    assert flags.redis is not None
    return connect(flags.redis, namespace=flags.name)
