"""Compare the policy server with an echo server: throughput, latency and memory.

Both run in their own processes and are loaded alternately, so that other load of the machine affects both. Ratios are
medians over rounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import grpc
import numpy as np
import psutil

from actors.serving.methods import make_stub
from actors.wire import policy_pb2
from benchmarks.form import Target, parser, publish
from benchmarks.serving.load import LoadResult, SteppingSession, closed_loop, open_loop
from benchmarks.serving.process import SPACES, ServerProcess, running_server

MIN_THROUGHPUT = {  # by sessions, as a fraction of the echo server's
    "unary": {1: 0.6, 16: 0.85, 64: 0.95, 256: 0.95},
    "stream": {1: 0.5, 16: 0.75, 64: 0.8, 256: 0.85},
}
MAX_P99 = 2.5  # as a multiple of the echo server's
PACED_SESSIONS, PACE_HZ = 64, 20.0
MAX_PACED_P99_MS = {"stream": 10.0, "unary": 20.0}
MEMORY_SESSIONS = 5_000


def main() -> None:
    known = parser("serve", __doc__ or "")
    known.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the policy runs")
    known.add_argument("--brief", action="store_true", help="all numbers of sessions, each for a second; no memory")
    workers_help = "instead, compare this many workers with one and the echo server, with as many client processes"
    known.add_argument("--workers", type=int, metavar="N", help=workers_help)
    options = known.parse_args()
    quick, brief = options.quick, options.brief or options.quick
    sizes = (1, 16) if quick else (1, 16, 64, 256)
    rounds, seconds, open_s = (1, 0.5, 1.0) if quick else (1, 1.0, 3.0) if brief else (3, 3.0, 10.0)
    rows: list[dict[str, Any]] = []
    targets: list[Target] = []
    if options.workers:
        publish(compare_workers(options.workers, options.device, sizes, rounds, seconds), targets, options.json)
        return
    with running_server("policy", options.device) as policy, running_server("echo") as echo:
        for kind in ("unary", "stream"):
            for sessions in sizes:
                row = measure(kind, sessions, policy, echo, rounds, seconds)
                rows.append(row)
                name = f"{kind}, {sessions} sessions"
                goal = MIN_THROUGHPUT[kind][sessions]
                targets.append(Target(f"{name}: steps/s, policy / echo", row["steps/s, policy / echo"], goal))
                targets.append(
                    Target(f"{name}: p99, {MAX_P99} x echo / policy", row["p99, echo / policy"] * MAX_P99, 1.0)
                )
        for kind, allowed_ms in MAX_PACED_P99_MS.items():
            load = asyncio.run(open_loop(policy.address, PACED_SESSIONS, PACE_HZ, kind == "stream", open_s))
            rows.append({"open loop": kind, "steps/s": load.steps_per_s, "p50 ms": load.p50_ms, "p99 ms": load.p99_ms})
            name = f"open loop, {PACED_SESSIONS} sessions at {PACE_HZ:g}/s, {kind}: {allowed_ms:g} ms / p99"
            targets.append(Target(name, allowed_ms / load.p99_ms, 1.0))
    if not brief:
        with running_server("policy", options.device) as fresh:
            rows.append(asyncio.run(memory(fresh, MEMORY_SESSIONS)))
    publish(rows, targets, options.json)


def measure(
    kind: str, sessions: int, policy: ServerProcess, echo: ServerProcess, rounds: int, seconds: float
) -> dict[str, Any]:
    """Load both servers alternately with closed loops. Returns a row of the table."""

    def load(server: ServerProcess) -> LoadResult:
        return asyncio.run(closed_loop(server.address, sessions, kind == "stream", seconds))

    turns = np.array([[load(echo), load(policy)] for _ in range(rounds)])  # [rounds, servers, steps/s and latencies]
    (echo_steps, _, echo_p99), (steps, p50, p99) = np.median(turns, 0).tolist()
    return {
        "kind": kind,
        "sessions": sessions,
        "steps/s": steps,
        "echo steps/s": echo_steps,
        "steps/s, policy / echo": float(np.median(turns[:, 1, 0] / turns[:, 0, 0])),
        "p50 ms": p50,
        "p99 ms": p99,
        "echo p99 ms": echo_p99,
        "p99, echo / policy": float(np.median(turns[:, 0, 2] / turns[:, 1, 2])),
    }


def compare_workers(count: int, device: str, sizes: Sequence[int], rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Load one worker, `count` workers and the echo server alternately, from `count` client processes that share the
    sessions. Returns the rows of the table."""
    rows = []
    with (
        running_server("policy", device) as one,
        running_server("policy", device, count) as several,
        running_server("echo") as echo,
        ProcessPoolExecutor(count, get_context("spawn")) as clients,
    ):
        servers = {f"{count} workers": several, "1 worker": one, "echo": echo}

        def load(server: ServerProcess, sessions: int, stream: bool) -> LoadResult:
            given = server.address, sessions // count, stream, seconds
            loads = [client.result() for client in [clients.submit(_closed_loop, *given) for _ in range(count)]]
            steps_per_s, p50_ms, p99_ms = np.array(loads).T
            return LoadResult(float(steps_per_s.sum()), float(p50_ms.max()), float(p99_ms.max()))

        for server in servers.values():
            load(server, count, False)  # the client processes start
        for kind in ("unary", "stream"):
            for sessions in (size for size in sizes if size >= count):
                stream = kind == "stream"
                turns = np.array([[load(s, sessions, stream) for s in servers.values()] for _ in range(rounds)])
                row: dict[str, Any] = {"kind": kind, "sessions": sessions}
                for name, (steps, _, p99) in zip(servers, np.median(turns, 0).tolist(), strict=True):
                    row |= {f"{name} steps/s": steps, f"{name} p99 ms": p99}
                ratio = float(np.median(turns[:, 0, 0] / turns[:, 1, 0]))
                rows.append(row | {f"steps/s, {count} / 1": ratio})
    return rows


def _closed_loop(address: str, sessions: int, stream: bool, seconds: float) -> LoadResult:
    return asyncio.run(closed_loop(address, sessions, stream, seconds))


async def memory(policy: ServerProcess, count: int) -> dict[str, Any]:
    """Measure the memory of the server per session that has stepped once."""
    process = psutil.Process(policy.pid)
    before = process.memory_info().rss
    async with grpc.aio.insecure_channel(policy.address) as channel:
        opening: Any = make_stub(channel).OpenSession
        for start in range(0, count, 100):
            request = policy_pb2.OpenSessionRequest(spaces_hash=SPACES.hash)
            opened = await asyncio.gather(*(opening(request) for _ in range(start, start + 100)))
            await asyncio.gather(*(SteppingSession(channel, o.session_id, False).step() for o in opened))
    return {"sessions opened": count, "KiB per session": (process.memory_info().rss - before) / count / 1024}


if __name__ == "__main__":
    main()
