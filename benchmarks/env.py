"""Speed of seed-training environments: inner steps and decisions per second, a fleet against a loop over hosts.

    python -m benchmarks.env [--quick] [--hosts mlp,cnn1d,cnn2d] [--small-cnns] [--budget S] [--json FILE]
                             [--device cuda] [--cuda-graph] [--backend torch] [--sizes 256,1024]

The loop is the one-environment reference, itself tuned: fused AdamW, active seeds only, channels last in memory. Both
run the same epochs of the same hosts, in one process on one thread: three slots, 16 minibatches of 64 rows per epoch,
500 validation rows, all features on. With three active seeds, two are held in the host and one is in training, so that
every epoch includes the shadow pass and all eight ablations; of two columns, both of the host's width, one is held and
one is in training. Loop and fleet take turns; the least time counts, CPU time on a CPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from actors.config import EnvConfig
from actors.env.seed_fleet import SeedTrainingFleet
from benchmarks.environment.growth import MIXES, Fleet, episodes, grown, parameters, settings, waits
from benchmarks.environment.hosts import HOSTS, BenchHost, few_images
from benchmarks.form import Side, Target, add_device, in_turns, parser, publish, seconds
from tests.support.env.reference_env import ReferenceFleet

SIZES, QUICK_SIZES, CUDA_SIZES = (1, 4, 16, 64, 256), (1, 4), (256, 1024)
CUDA_GOAL = 50.0  # times the loop on the same GPU
PEER_GOAL = 2.0  # times the loop, for the work of a decision of the fastest public implementation
NONE, ALIKE, COLUMNS = MIXES
Row = dict[str, Any]


def speeds(
    host: BenchHost, config: EnvConfig, sizes: tuple[int, ...], mix: str, budget_s: float, targets: list[Target]
) -> Iterator[Row]:
    """Yield the speed of the loop and of fleets of each size, until a size exceeds the budget; add the targets that the
    host has for such a fleet."""

    def row(runner: str, fleet: Fleet, env_s: float, ratio: float) -> Row:
        return {
            "host": host.name,
            "runner": runner,
            "envs": fleet.num_envs,
            "seeds": mix,
            "parameters": parameters(fleet),
            "inner steps/s": config.max_inner_steps / env_s,
            "decisions/s": 1 / env_s,
            "over loop": ratio,
        }

    loop, env_s = grown(ReferenceFleet, config, host, 1, mix), 0.0
    for envs in sizes:
        if env_s * envs * 3 > budget_s * 4:  # growing, one warm-up round and two timed ones
            print(f"{host.name}, {mix}: {envs} environments exceed the budget of {budget_s:g} s")
            break
        fleet = grown(SeedTrainingFleet, config, host, envs, mix)
        best = in_turns({"loop": _epoch(loop), "fleet": _epoch(fleet)}, 7, budget_s / 2)
        if len({episode.epoch for episode in episodes(fleet)}) > 1:
            raise RuntimeError("an episode ended while it was timed, and idle environments cost nothing")
        if envs == sizes[0]:
            yield row("loop", loop, best["loop"], 1.0)
        env_s, ratio = best["fleet"], best["loop"] / best["fleet"]
        yield row("fleet", fleet, env_s, ratio)
        targets += _targets(host, config, envs, mix, ratio, config.max_inner_steps / env_s)


def _epoch(fleet: Fleet) -> Side:
    """Return a side that trains every environment for an epoch; its seconds are those of one environment."""
    actions, device = waits(fleet), episodes(fleet)[0].config.device
    return lambda: seconds(lambda: fleet.step(actions), device) / fleet.num_envs


def _targets(host: BenchHost, config: EnvConfig, envs: int, mix: str, ratio: float, steps: float) -> Iterator[Target]:
    named = f"{host.name}, E = {envs}, seeds: {mix}{', CUDA graph' * config.cuda_graph}"
    over = f"{named}, over the loop"
    if config.device == "cuda" and mix == ALIKE:
        yield Target(over, ratio, CUDA_GOAL)
    elif config.device == "cpu" and envs == host.goal_envs and mix in host.goals:
        yield Target(over, ratio, host.goals[mix])
        if mix == ALIKE and host.goal_steps:
            yield Target(f"{named}, inner steps/s", steps, host.goal_steps)


def small_cnns(budget_s: float, targets: list[Target]) -> Iterator[Row]:
    """Yield rows of small convolutional hosts with the work of a decision of the fastest public implementation (4
    environments, 3 steps, 50 validation rows); add a target for each."""
    config = settings("benchmarks.environment.hosts:few_images", inner_steps=3)
    peer = dict.fromkeys((NONE, ALIKE), PEER_GOAL)
    host = replace(HOSTS["cnn2d"], name="cnn2d, 3 steps", factory=few_images, goals=peer, goal_envs=4)
    for mix in peer:
        yield from speeds(host, config, (4,), mix, budget_s, targets)


def _bench(host: BenchHost, args: argparse.Namespace, targets: list[Target]) -> Iterator[Row]:
    on_cpu, budget_s = args.device == "cpu", 1.0 if args.quick else args.budget
    host = replace(host, factory=few_images) if args.quick and host.name == "cnn2d" else host
    sizes = args.sizes or (QUICK_SIZES if args.quick else SIZES if on_cpu else CUDA_SIZES)
    config = replace(
        settings(host.task, 2 if args.quick else 16),
        device=args.device,
        backend=args.backend,
        cuda_graph=args.cuda_graph,
    )
    for mix in (ALIKE, COLUMNS) if args.quick else (ALIKE, NONE, COLUMNS):
        own = sizes if mix == ALIKE else (min(host.goal_envs, sizes[-1]) if on_cpu else sizes[0],)
        yield from speeds(host, config, own, mix, budget_s, targets)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def main() -> None:
    known = parser("env", __doc__.splitlines()[0])
    add_device(known)
    known.add_argument("--hosts", default=",".join(HOSTS), help="which of " + ", ".join(HOSTS))
    known.add_argument("--budget", type=float, default=20.0, help="approximate seconds for each row")
    known.add_argument("--sizes", type=_sizes, help="numbers of environments in a fleet, such as 256,1024")
    known.add_argument("--backend", choices=("auto", "torch"), default="auto", help="torch: as on a GPU, on any device")
    known.add_argument(
        "--small-cnns", action="store_true", help="time only small CNNs, and a public implementation's work"
    )
    known.add_argument("--cuda-graph", action="store_true", help="replay an epoch's minibatches as a CUDA graph")
    args = known.parse_args()
    names = [] if args.small_cnns else args.hosts.split(",")
    if unknown := set(names) - set(HOSTS):
        known.error(f"no such host: {', '.join(unknown)}; choose from {', '.join(HOSTS)}")
    if args.cuda_graph and args.device != "cuda":
        known.error("--cuda-graph needs --device cuda")
    targets: list[Target] = []
    rows = [row for name in names for row in _bench(HOSTS[name], args, targets)]
    if args.small_cnns or ("cnn2d" in names and args.device == "cpu" and args.backend == "auto" and not args.quick):
        rows += small_cnns(args.budget, targets)
    publish(rows, targets, args.json)


if __name__ == "__main__":
    main()
