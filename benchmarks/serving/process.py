"""Run a server in its own process: the policy server, or an echo server with the same messages and no policy."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc
import torch

from actors.config import PolicyConfig
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import to_weights
from actors.serving.methods import make_handler
from actors.serving.options import ServeOptions, server_channel_options
from actors.serving.server.server import PolicyServer, serve
from actors.slots.spaces import seed_spaces
from actors.wire import policy_pb2
from deploy.launch.server_log import configure_log
from deploy.launch.supervision.server_workers import run_workers

SPACES = seed_spaces(5, "tamiyo")


class ServerProcess(NamedTuple):
    """A running server process."""

    address: str
    pid: int


@contextmanager
def running_server(kind: str, device: str = "cpu", workers: int = 1) -> Iterator[ServerProcess]:
    """Run a server of this kind, `policy` or `echo`, during a `with` block; `workers` are those of `tamiyo serve`.

    Raises `RuntimeError` if it ends.
    """
    command = [sys.executable, "-m", "benchmarks.serving.process", kind, device, str(workers)]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip().removeprefix("serving on ")
            if not address:
                errors.seek(0)
                raise RuntimeError(f"the {kind} server ended: {errors.read()[-2000:]}")
            yield ServerProcess(address, process.pid)
        finally:
            process.kill()
            process.wait()


def run_policy(device: str, workers: int) -> None:
    """Serve a policy with random weights, and print the address once they are loaded."""
    torch.manual_seed(0)
    network = FactoredRecurrentActorCritic(SPACES, PolicyConfig()).eval()
    options, weights = ServeOptions(listen="127.0.0.1:0", device=device, workers=workers), to_weights(network, 1, 1, 8)

    def started(server: PolicyServer) -> None:
        """Say nothing before there are weights."""

    def loaded(server: PolicyServer) -> None:
        print(server.address, flush=True)

    if workers == 1:
        asyncio.run(serve(options, weights, started, loaded=loaded))
    else:
        run_workers(options, lambda: weights, started)


async def run_echo() -> None:
    """Parse and serialize the same messages with the same kind of handlers, without a policy."""

    def answer(request: policy_pb2.StepRequest) -> policy_pb2.StepResponse:
        return policy_pb2.StepResponse(
            session_id=request.session_id, step_index=request.step_index, action=[0] * 6, log_probs=[0.0] * 6
        )

    async def step(request: policy_pb2.StepRequest, context: Any) -> policy_pb2.StepResponse:
        return answer(request)

    async def step_stream(
        requests: AsyncIterator[policy_pb2.StepStreamRequest], context: Any
    ) -> AsyncIterator[policy_pb2.StepStreamResponse]:
        async for request in requests:
            yield policy_pb2.StepStreamResponse(
                session_id=request.step.session_id, step_index=request.step.step_index, step=answer(request.step)
            )

    async def open_session(request: policy_pb2.OpenSessionRequest, context: Any) -> policy_pb2.OpenSessionResponse:
        return policy_pb2.OpenSessionResponse(session_id="x" * 24)

    server = grpc.aio.server(options=server_channel_options(ServeOptions(), 1000))
    behaviors = {"Step": step, "StepStream": step_stream, "OpenSession": open_session}
    server.add_generic_rpc_handlers((make_handler(behaviors),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    torch.set_num_threads(1)
    configure_log("json")
    kind, device, workers = sys.argv[1:]
    if kind == "echo":
        asyncio.run(run_echo())
    else:
        run_policy(device, int(workers))
