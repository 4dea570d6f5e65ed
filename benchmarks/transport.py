"""The queue against raw redis-py, and how soon published weights are applied.

    python -m benchmarks.transport [--quick] [--json FILE]

Raw is XADD > XREADGROUP > XACK + XDEL with hiredis, the same payloads, the same number of entries per round trip and
the same server (embedded, unix socket, no file): it keeps no accounts and fences nobody. Both sides take turns within a
run, and the best of several rounds counts. Up to 8 clients of the broadcast hold a policy and load it; those beyond are
threads without torch that fetch and decode.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import redis

from actors.config import PolicyConfig, QueueConfig
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import load_weights, to_weights
from actors.slots.spaces import seed_spaces
from actors.transport.base import EpisodeHeader
from actors.transport.redis import connect
from benchmarks.form import Target, in_turns, parser, publish
from deploy.launch.embedded_redis import EmbeddedRedis

AT_ONCE = 8  # entries per round trip
GOALS = {16: 0.8, 128: 0.7, 1024: 0.9}  # KB -> of raw's episodes per second
HOLDERS = 8  # clients that hold a policy
POLL_S = 0.001
Pass = Callable[[list[bytes]], None]
"""Puts episodes, takes and acknowledges them."""


def ours(url: str) -> Pass:
    transport = connect(url, QueueConfig(max_episodes=10**6, max_bytes=2**34, max_episode_bytes=2**24), "ours")
    generation = transport.open_generation(-1, "learner").number
    numbers = iter(range(10**9))

    def once(payloads: list[bytes]) -> None:
        named = zip(payloads, numbers, strict=False)
        transport.put_all([(EpisodeHeader(f"run/actor-0/1/{n}", generation, 0, 0), payload) for payload, n in named])
        taken = transport.take(AT_ONCE, 0)
        assert len(taken[-1].payload) == len(payloads[-1])
        transport.ack([d.entry_id for d in taken])

    return once


def raw(url: str) -> Pass:
    client: Any = redis.Redis.from_url(url, protocol=2)
    client.xgroup_create("raw", "learner", "0", mkstream=True)

    def once(payloads: list[bytes]) -> None:
        pipeline = client.pipeline(transaction=False)
        for payload in payloads:
            pipeline.xadd("raw", {"episode": "run/actor-0/1/0", "payload": payload})
        pipeline.execute()
        ((_, taken),) = client.xreadgroup("learner", "a", {"raw": ">"}, count=AT_ONCE)
        assert len(taken[-1][1][b"payload"]) == len(payloads[-1])
        ids = [entry_id for entry_id, _ in taken]
        pipeline = client.pipeline(transaction=True)
        pipeline.xack("raw", "learner", *ids)
        pipeline.xdel("raw", *ids)
        pipeline.execute()

    return once


def passes(once: Pass, count: int, payloads: list[bytes]) -> float:
    began = time.perf_counter()
    for _ in range(count):
        once(payloads)
    return time.perf_counter() - began


def queue(url: str, quick: bool) -> tuple[list[dict[str, Any]], list[Target]]:
    rows, targets = [], []
    sides = {"tamiyo": ours(url), "raw redis-py": raw(url)}
    for kilobytes, goal in GOALS.items():
        times = max(2, (25 if quick else 100) // max(1, kilobytes // 64))
        count, payloads = AT_ONCE * times, [os.urandom(kilobytes * 1024) for _ in range(AT_ONCE)]
        timed = {name: partial(passes, once, times, payloads) for name, once in sides.items()}
        best = in_turns(timed, 4 if quick else 12)
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


class Client(threading.Thread):
    """Fetches as soon as there is something newer, and notes when it was applied."""

    def __init__(self, url: str, network: FactoredRecurrentActorCritic | None) -> None:
        super().__init__(daemon=True)
        self.transport, self.network = connect(url, None, "weights"), network
        self.applied: dict[int, float] = {}  # by version
        self.over = False

    def run(self) -> None:
        digest = ""
        while not self.over:
            weights = self.transport.fetch(digest)
            if weights is None:
                time.sleep(POLL_S)
                continue
            if self.network is not None:
                load_weights(self.network, weights)
            digest = weights.digest
            self.applied[weights.version] = time.perf_counter()
        self.transport.close()


def broadcast(url: str, quick: bool) -> list[dict[str, Any]]:
    spaces = seed_spaces(5)
    policies = [FactoredRecurrentActorCritic(spaces, PolicyConfig()) for _ in range(HOLDERS)]
    learner = connect(url, None, "weights")
    generation = learner.open_generation(-1, "learner")
    version, rows = generation.next_version, []
    for count in (1, 4, 8) if quick else (1, 2, 4, 8, 16, 32, 64):
        clients = [Client(url, policies[i] if i < HOLDERS else None) for i in range(count)]
        for client in clients:
            client.start()
        delays = []
        for _ in range(3 if quick else 10):
            weights = to_weights(policies[0], version, generation.number, 8)
            began = time.perf_counter()
            learner.publish(weights)
            while not all(version in client.applied for client in clients):
                time.sleep(POLL_S)
            delays += [client.applied[version] - began for client in clients]
            version += 1
        for client in clients:
            client.over = True
        for client in clients:
            client.join()
        size = sum(t.nbytes for t in weights.tensors.values())
        rows.append(
            {
                "clients": count,
                "with a policy": min(count, HOLDERS),
                "weights MB": size / 2**20,
                "median ms": 1e3 * statistics.median(delays),
                "slowest ms": 1e3 * max(delays),
            }
        )
    return rows


def main() -> None:
    args = parser("transport", __doc__.splitlines()[0]).parse_args()
    with EmbeddedRedis() as server:
        rows, targets = queue(server.url, args.quick)
        rows += broadcast(server.url, args.quick)
    publish(rows, targets, args.json)


if __name__ == "__main__":
    main()
