"""`tamiyo serve`: serve a checkpoint, a rule, or the weights that a run publishes, until SIGTERM."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import torch

from actors.errors import UserError
from actors.policy.saved import find_policy, read_weights
from actors.serving.server.models import ServedRule
from actors.serving.server.server import PolicyServer, PolicySource, serve
from actors.sessions.session_state import read_key
from actors.transport.redis import Transport, connect
from deploy.commands.serve_flags import ServeFlags
from deploy.launch import kernels
from deploy.launch.server_log import configure_log
from deploy.launch.supervision.server_workers import ServerWorkers, reserved_address


def run_server(flags: ServeFlags) -> int:
    """Run the server. Returns 0 after a graceful shutdown. Raises `UserError`."""
    if flags.threads < 1:
        raise UserError(f"--threads is {flags.threads}: it must be at least 1")
    torch.set_num_threads(flags.threads)
    configure_log(flags.log)
    source = _source(flags)
    if flags.workers > 1:
        return _run_workers(flags, source)

    async def loaded(server: PolicyServer) -> None:
        print(f"serving on {server.address}", flush=True)

    asyncio.run(serve(flags, source, _started, loaded=loaded))
    return 0


def _run_workers(flags: ServeFlags, source: PolicySource) -> int:
    """Run several servers on one port, which share the key that signs exported sessions. Returns the exit status in
    each worker; the process that supervises them raises `SystemExit`."""
    if isinstance(source, Transport):
        source.close()  # the address is right; each worker connects by itself
    key, workers = read_key(flags.state_key_file), ServerWorkers(flags)
    kernels.load(kernels.POLICY)
    with reserved_address(flags) as address:
        number = workers.supervise(address)
        port = flags.metrics_port and flags.metrics_port + number

        async def started(server: PolicyServer) -> None:
            if number == 0 and not workers.serving:
                await _started(server)

        async def loaded(server: PolicyServer) -> None:
            workers.report_loaded(number)

        options = replace(flags, listen=address, metrics_port=port)
        source = _source(flags) if flags.redis else source
        asyncio.run(serve(options, source, started, loaded=loaded, key=key))
    return 0


def _source(flags: ServeFlags) -> PolicySource:
    if flags.rule is not None:
        return ServedRule(flags.rule)
    if flags.checkpoint is not None:
        return read_weights(find_policy(flags.checkpoint, flags.latest))
    assert flags.redis is not None
    return connect(flags.redis, namespace=flags.name)


async def _started(server: PolicyServer) -> None:
    print(f"no weights yet; listening on {server.address}", flush=True)
