"""The queue against raw redis-py, the codec against a copy of bytes, and how soon published weights are applied.

    python -m benchmarks.transport [--quick] [--json FILE] [--end-to-end]

Raw is XADD > XREADGROUP > XACK + XDEL with hiredis, the same payloads, the same number of entries per round trip and
the same server (embedded, unix socket, no file): it keeps no accounts and fences nobody. Both sides take turns within a
run, and the best of several rounds counts. The codec is apart: payloads are bytes already. Up to 8 clients of the
broadcast hold a policy and load it; those beyond are threads without torch that fetch and decode.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import redis

from actors.config import QueueConfig
from actors.transport.base import EpisodeHeader
from actors.transport.redis import connect
from benchmarks.form import Target, parser, publish
from deploy.embedded_redis import EmbeddedRedis

AT_ONCE = 8  # entries per round trip
GOALS = {16: 0.6, 128: 0.7, 1024: 0.9}  # KB -> of raw's episodes per second
HOLDERS = 8  # clients that hold a policy
Pass = Callable[[list[bytes]], float]


def ours(url: str) -> Pass:
    transport = connect(url, QueueConfig(max_episodes=10**6, max_bytes=2**34, max_episode_bytes=2**24), "ours")
    generation = transport.open_generation(-1, "learner").number
    numbers = iter(range(10**9))

    def run(payloads: list[bytes]) -> float:
        began = time.perf_counter()
        for start in range(0, len(payloads), AT_ONCE):
            some = payloads[start : start + AT_ONCE]
            transport.put_all([(header(next(numbers), generation), payload) for payload in some])
            taken = transport.take(AT_ONCE, 0)
            assert len(taken[-1].payload) == len(some[-1])
            transport.ack([d.entry_id for d in taken])
        return time.perf_counter() - began

    return run


def header(number: int, generation: int) -> EpisodeHeader:
    return EpisodeHeader(f"run/actor-0/1/{number}", "actor-0", 1, number, generation, 0, 0)


def raw(url: str) -> Pass:
    client: Any = redis.Redis.from_url(url, protocol=2)
    client.xgroup_create("raw", "learner", "0", mkstream=True)

    def run(payloads: list[bytes]) -> float:
        began = time.perf_counter()
        for start in range(0, len(payloads), AT_ONCE):
            some = payloads[start : start + AT_ONCE]
            pipeline = client.pipeline(transaction=False)
            for payload in some:
                pipeline.xadd("raw", {"episode": "run/actor-0/1/0", "payload": payload})
            pipeline.execute()
            ((_, taken),) = client.xreadgroup("learner", "a", {"raw": ">"}, count=AT_ONCE)
            assert len(taken[-1][1][b"payload"]) == len(some[-1])
            ids = [entry_id for entry_id, _ in taken]
            pipeline = client.pipeline(transaction=True)
            pipeline.xack("raw", "learner", *ids)
            pipeline.xdel("raw", *ids)
            pipeline.execute()
        return time.perf_counter() - began

    return run


def queue(url: str, quick: bool) -> tuple[list[dict[str, Any]], list[Target]]:
    rows, targets = [], []
    sides = {"tamiyo": ours(url), "raw redis-py": raw(url)}
    for kilobytes, goal in GOALS.items():
        count = AT_ONCE * max(2, (25 if quick else 100) // max(1, kilobytes // 64))
        payloads = [os.urandom(kilobytes * 1024) for _ in range(AT_ONCE)] * (count // AT_ONCE)
        rounds = 4 if quick else 12
        times = {name: [run(payloads)] for name, run in sides.items()}
        for _ in range(rounds):
            for name, run in sides.items():
                times[name].append(run(payloads))
        best = {name: min(seconds) for name, seconds in times.items()}
        ratio = best["raw redis-py"] / best["tamiyo"]
        rows += [
            {
                "KB": kilobytes,
                "side": name,
                "episodes/s": count / seconds,
                "MB/s": count * kilobytes / 1024 / seconds,
                "of raw": best["raw redis-py"] / seconds,
            }
            for name, seconds in best.items()
        ]
        targets.append(Target(f"put > take > ack of {kilobytes} KB: episodes/s, of raw", ratio, goal))
    return rows, targets


def best_of(call: Callable[[], object], times: int) -> float:
    """Seconds of one call, the best of several."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def codec(quick: bool) -> list[dict[str, Any]]:
    """Microseconds per episode, against a copy of its bytes; and how that compares with a step of the queue."""
    rows = []
    for steps in (25, 150, 1000):
        run = Sampler(steps)
        episode = run.episode
        payload = encode_episode(episode)
        times = 20 if quick else 200
        figures = {
            "encode": best_of(lambda e=episode: encode_episode(e), times),
            "decode": best_of(lambda p=payload: decode_episode(p), times),
            "copy of the bytes": best_of(lambda p=payload: bytearray(p), times),
        }
        rows += [
            {"episode of steps": steps, "KB": len(payload) / 1024, "what": name, "µs": 1e6 * seconds}
            for name, seconds in figures.items()
        ]
    return rows


def main() -> None:
    known = parser("transport", __doc__.splitlines()[0])
    known.add_argument("--end-to-end", action="store_true", help="also whole runs with 1, 2 and 4 actors: minutes")
    args = known.parse_args()
    with EmbeddedRedis() as server:
        rows, targets = queue(server.url, args.quick)
    publish(rows, targets, args.json)


if __name__ == "__main__":
    main()
