"""`tamiyo serve`: serve a checkpoint, a rule, or the weights that a run publishes, until SIGTERM."""

from __future__ import annotations

import asyncio

import torch

from actors.errors import UserError
from actors.policy.saved import find_policy, read_weights
from actors.serving.server.models import ServedRule
from actors.serving.server.server import PolicyServer, PolicySource, serve
from actors.transport.redis import connect
from deploy.commands.serve_flags import ServeFlags
from deploy.launch.server_log import configure_log


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
        source = read_weights(find_policy(flags.checkpoint, flags.latest))
    else:
        assert flags.redis is not None
        source = connect(flags.redis, namespace=flags.name)

    async def started(server: PolicyServer) -> None:
        print(f"no weights yet; listening on {server.address}", flush=True)

    async def loaded(server: PolicyServer) -> None:
        print(f"serving on {server.address}", flush=True)

    asyncio.run(serve(flags, source, started, loaded=loaded))
    return 0
