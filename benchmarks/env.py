"""Speed of seed-training environments: inner steps and decisions per second, a fleet against a loop over hosts.

    python -m benchmarks.env [--quick] [--hosts mlp,cnn1d,cnn2d] [--small-cnns] [--budget S] [--json FILE]
                             [--device cuda] [--cuda-graph] [--backend torch] [--sizes 256,1024]

The loop is the one-environment reference, itself tuned: fused AdamW, active seeds only, channels last in memory. Both
run the same epochs of the same hosts, in one process on one thread: three slots, 16 minibatches of 64 rows per epoch,
500 validation rows, all features on. With three active seeds, two are held in the host and one is in training, so that
every epoch includes the shadow pass and all eight ablations; of two columns, both of the host's width, one is held and
one is in training. Loop and fleet take turns; CPU time is compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from actors.config import EnvConfig
from actors.env.fleet import Fleet
from actors.env.seed_fleet import SeedTrainingFleet
from benchmarks.environment.growth import MIXES, grown, parameters, settings
from benchmarks.environment.hosts import HOSTS, BenchHost, few_images, sequences, small_images
from benchmarks.environment.memory import bytes_per_env
from benchmarks.environment.roofline import roofline
from benchmarks.environment.rounds import Cell, compare
from benchmarks.environment.shares import shares
from benchmarks.environment.widths import compare_widths
from benchmarks.form import Target, parser, publish
from tests.support.env.reference_env import ReferenceFleet

SIZES, QUICK_SIZES, CUDA_SIZES = (1, 4, 16, 64, 256), (1, 4), (256, 1024, 4096)
CUDA_GOAL = 50.0  # times the loop on the same GPU
LEAST_DRAWN = 16
"""Environments in a fleet of drawn widths, at least."""
KINDS = 6  # blueprints; the loop with all kinds has a host for each
PEER_DECISIONS_S = 16.0
"""Published speed of the fastest public single-process implementation, on one core: 4 environments with CNN hosts of
6,418 parameters on 3x32x32 images; a decision is 3 steps of 64 training samples, and 50 validation samples."""
PEER_GOAL = 2.0  # times the loop, for the same work
RESEARCH_HOSTS = {"small images": ("cnn2d", small_images), "sequences": ("cnn1d", sequences)}
"""Convolutional hosts of the size of the training families."""
RESEARCH_WIDTHS, RESEARCH_ENVS = (1, 16), 16
RESEARCH_GOAL = 1000 / 6  # decisions/s: 6 ms each
COLUMNS = MIXES[3]
SPEEDS = ("parameters", "inner steps/s", "decisions/s")
Row = dict[str, Any]


class Bench:
    """Measures one host: speed at every fleet size, then shares of time, memory and the roofline at one size."""

    def __init__(self, host: BenchHost, args: argparse.Namespace) -> None:
        self.host, self.device = host, args.device
        self.quick = args.quick
        self.budget_s = 0.5 if args.quick else args.budget
        self.sizes = args.sizes or (QUICK_SIZES if args.quick else CUDA_SIZES if args.device == "cuda" else SIZES)
        self.goal_envs = min(host.goal_envs, self.sizes[-1]) if args.device == "cpu" else self.sizes[0]
        self.config = replace(
            settings(host.task, 2 if args.quick else 16),
            device=args.device,
            backend=args.backend,
            cuda_graph=args.cuda_graph,
        )
        self.speed: list[Row] = []
        self.inside: list[Row] = []
        self.widths: list[Row] = []
        self.targets: list[Target] = []

    def run(self) -> None:
        for mix in ("3 alike", COLUMNS) if self.quick else ("3 alike", "none", "3 of all kinds", COLUMNS):
            sizes = self.sizes if mix == "3 alike" else (self.goal_envs,)
            self._mix(mix, sizes)
        if self.device == "cpu" and self.config.backend == "auto":
            self._drawn_widths()

    def _drawn_widths(self) -> None:
        """Compare a fleet whose widths are drawn with fleets of one width."""
        task, steps = self.host.task, self.config.max_inner_steps
        widths = self.host.widths[:: len(self.host.widths) - 1] if self.quick else self.host.widths
        envs = self.goal_envs if self.quick else max(self.goal_envs, LEAST_DRAWN)
        drawn, *own = (
            grown(SeedTrainingFleet, settings(task, steps, span), self.host, envs, COLUMNS)
            for span in ((widths[0], widths[-1]), *widths)
        )
        result = compare_widths(drawn, dict(zip(widths, own, strict=True)), self.budget_s)
        span = f"drawn, {widths[0]} to {widths[-1]}"
        for name, fleet, s in (
            (span, drawn, result.drawn_s),
            (f"{span}, each as fast as among its own", drawn, result.lossless_s),
            *zip(widths, own, result.own_s.values(), strict=True),
        ):
            row = speed_row(self.host.name, "fleet", fleet, COLUMNS, s, 0.0, steps)
            where = {"host": self.host.name, "envs": envs, "width": name}
            self.widths.append(where | {k: row[k] for k in SPEEDS} | {"over mean": 1 / s / result.mean_speed})
        where = {"host": self.host.name, "envs": envs, "width": "harmonic mean", "parameters": ""}
        speed = result.harmonic_ratio * result.mean_speed
        speeds = {"inner steps/s": steps * speed, "decisions/s": speed, "over mean": result.harmonic_ratio}
        self.widths.append(where | speeds)
        named = f"{self.host.name}, E = {envs}, drawn widths over the mean of fleets of one"
        if self.host.goal_widths:
            self.targets.append(
                Target(f"{named} (at most {result.lossless_ratio:.2f})", result.ratio, self.host.goal_widths)
            )

    def _mix(self, mix: str, sizes: Sequence[int]) -> None:
        loops = KINDS if mix == "3 of all kinds" else 1
        loop = self._grown(ReferenceFleet, loops, mix)
        at = 0
        env_s = 0.0
        for envs in sizes:
            if not self.quick and env_s * envs * 3 > self.budget_s * 4:  # growing, one warm-up round and two timed ones
                self._skip(mix, envs, f"exceeds the budget of {self.budget_s:g} s; see E = {at}")
                continue
            try:
                fleet = self._grown(SeedTrainingFleet, envs, mix)
                cell = compare(loop, fleet, self.budget_s / 2, self.device, 1 if self.quick else 2)
            except torch.OutOfMemoryError:
                self._skip(mix, envs, "out of memory")
                continue
            if not at:
                self._speed(mix, "loop", loop, cell.loop_s, 1.0)
            self._speed(mix, "fleet", fleet, cell.fleet_s, cell.ratio)
            at, env_s = envs, cell.fleet_s
            if envs == self.goal_envs or self.device == "cuda":
                self._look_inside(mix, fleet, cell)

    def _grown(self, kind: type[ReferenceFleet] | type[SeedTrainingFleet], envs: int, mix: str) -> Fleet:
        return grown(kind, self.config, self.host, envs, mix)

    def _look_inside(self, mix: str, fleet: Fleet, cell: Cell) -> None:
        assert isinstance(fleet, SeedTrainingFleet)
        envs = fleet.num_envs
        if mix == "3 alike":
            named = f"{self.host.name}, E = {envs}, 3 active seeds{', CUDA graph' * self.config.cuda_graph}"
            if self.device == "cuda":
                self.targets.append(Target(f"{named}, over the loop", cell.ratio, CUDA_GOAL))
            elif envs == self.host.goal_envs:
                self.targets.append(Target(f"{named}, over the loop", cell.ratio, self.host.goal_ratio))
            if self.host.goal_steps and self.device == "cpu" and not self.quick:
                steps = self.config.max_inner_steps / cell.fleet_s
                self.targets.append(Target(f"{named}, inner steps/s", steps, self.host.goal_steps))
            where: Row = {"host": self.host.name, "envs": envs}
            memory = bytes_per_env(fleet)
            limits = roofline(fleet, cell.fleet_s, memory, self.device)
            parts = shares(fleet, self.device, 1 if self.quick else 2)
            self.inside += [where | parts, where | memory, where | limits]
        elif mix == COLUMNS and self.host.goal_columns and envs == self.host.goal_envs and self.device == "cpu":
            named = f"{self.host.name}, E = {envs}, 3 active seeds and 2 columns, over the loop"
            self.targets.append(Target(named, cell.ratio, self.host.goal_columns))

    def _speed(self, mix: str, runner: str, fleet: Fleet, env_s: float, ratio: float) -> None:
        self.speed.append(speed_row(self.host.name, runner, fleet, mix, env_s, ratio, self.config.max_inner_steps))

    def _skip(self, mix: str, envs: int, why: str) -> None:
        row = dict.fromkeys(self.speed[0], "-") if self.speed else {}
        named = {"host": self.host.name, "runner": "fleet", "envs": envs, "seeds": mix, "parameters": why}
        self.speed.append(row | named)


def speed_row(host: str, runner: str, fleet: Fleet, mix: str, env_s: float, ratio: float, steps: int) -> Row:
    return {
        "host": host,
        "runner": runner,
        "envs": fleet.num_envs,
        "seeds": mix,
        "parameters": parameters(fleet),
        "inner steps/s": steps / env_s,
        "decisions/s": 1 / env_s,
        "over loop": ratio,
    }


def research_rows(budget_s: float, targets: list[Target]) -> Iterator[Row]:
    """Yield rows of fleets of small convolutional hosts of drawn widths without seeds; add a target for each."""
    for name, (kind, factory) in RESEARCH_HOSTS.items():
        host = replace(HOSTS[kind], name=name, factory=factory)
        config = settings(host.task, width=RESEARCH_WIDTHS)
        loop, fleet = (
            grown(fleet_kind, config, host, RESEARCH_ENVS, MIXES[0])
            for fleet_kind in (ReferenceFleet, SeedTrainingFleet)
        )
        cell = compare(loop, fleet, budget_s / 2, "cpu")
        named = f"{name}, {RESEARCH_WIDTHS[0]} to {RESEARCH_WIDTHS[1]} channels, E = {RESEARCH_ENVS}, decisions/s"
        targets.append(Target(named, 1 / cell.fleet_s, RESEARCH_GOAL))
        yield speed_row(name, "fleet", fleet, MIXES[0], cell.fleet_s, cell.ratio, config.max_inner_steps)


def peer_rows(budget_s: float, targets: list[Target]) -> Iterator[Row]:
    """Yield rows with the work of the public implementation's decision, and its published figure; add targets."""
    config: EnvConfig = settings("benchmarks.environment.hosts:few_images", inner_steps=3)
    host = replace(HOSTS["cnn2d"], name="cnn2d, 3 steps", factory=few_images)
    for mix in MIXES[:2]:
        loop, fleet = (
            grown(kind, config, host, envs, mix) for kind, envs in ((ReferenceFleet, 1), (SeedTrainingFleet, 4))
        )
        cell = compare(loop, fleet, budget_s / 2, "cpu")
        targets.append(Target(f"{host.name}, E = 4, seeds: {mix}, over the loop", cell.ratio, PEER_GOAL))
        yield speed_row(host.name, "fleet", fleet, mix, cell.fleet_s, cell.ratio, 3)
    published = {
        "host": "public implementation, as published",
        "runner": "loop",
        "envs": 4,
        "seeds": "-",
        "parameters": "6,418",
    }
    speeds = {"inner steps/s": 3 * PEER_DECISIONS_S, "decisions/s": PEER_DECISIONS_S, "over loop": "-"}
    yield published | speeds


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def main() -> None:
    known = parser("env", __doc__.splitlines()[0])
    known.add_argument("--hosts", default=",".join(HOSTS), help="which of " + ", ".join(HOSTS))
    known.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    known.add_argument("--budget", type=float, default=20.0, help="approximate seconds for each row")
    known.add_argument("--sizes", type=_sizes, help="numbers of environments in a fleet, such as 256,1024")
    known.add_argument("--backend", choices=("auto", "torch"), default="auto", help="torch: as on a GPU, on any device")
    known.add_argument(
        "--small-cnns", action="store_true", help="time only small CNNs, and the public implementation's work"
    )
    known.add_argument("--cuda-graph", action="store_true", help="replay an epoch's minibatches as a CUDA graph")
    args = known.parse_args()
    names = args.hosts.split(",")
    if unknown := set(names) - set(HOSTS):
        known.error(f"no such host: {', '.join(unknown)}; choose from {', '.join(HOSTS)}")
    if args.device == "cuda" and not torch.cuda.is_available():
        known.error("--device cuda: PyTorch finds no CUDA device on this machine")
    if args.cuda_graph and args.device != "cuda":
        known.error("--cuda-graph needs --device cuda")
    hosts = [HOSTS[name] for name in names]
    if args.quick:
        hosts = [replace(host, factory=few_images) if host.name == "cnn2d" else host for host in hosts]
    benches = [] if args.small_cnns else [Bench(host, args) for host in hosts]
    for bench in benches:
        bench.run()
    rows = [row for bench in benches for row in bench.speed]
    widths = [row for bench in benches for row in bench.widths]
    targets = [target for bench in benches for target in bench.targets]
    if args.small_cnns or ("cnn2d" in names and args.device == "cpu" and args.backend == "auto" and not args.quick):
        rows += [*peer_rows(args.budget, targets), *research_rows(args.budget, targets)]
    inside = sorted((row for bench in benches for row in bench.inside), key=lambda row: list(row)[2])
    publish(rows + widths + inside, targets, args.json)


if __name__ == "__main__":
    main()
