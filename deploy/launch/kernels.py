"""The modules that compile the kernels of each part of Tamiyo (see `actors.kernels.compile`)."""

from __future__ import annotations

import importlib

from actors.kernels.cache import is_compiled
from deploy.config.schema import Config

POLICY, ENVIRONMENTS, CNNS = "the policy", "the environments", "convolutional hosts"
PACKAGES = {
    POLICY: ("policy", "actors.kernels.policy.compile"),
    ENVIRONMENTS: ("hosts", "actors.env.compiled.compile"),
    CNNS: ("cnn", "actors.kernels.cnn.compile"),
}
"""For each part, the package of `actors.kernels` and the module that compiles it."""


def missing(parts: list[str]) -> list[str]:
    """Return those of `parts` that have yet to be compiled on this machine."""
    return [part for part in parts if not is_compiled(PACKAGES[part][0])]


def of_workers(config: Config) -> list[str]:
    """Return the parts that every run with these settings uses on a CPU."""
    return [POLICY, *([ENVIRONMENTS] if config.on_seed_hosts and config.env.backend != "torch" else [])]


def load(part: str) -> None:
    """Load the kernels of a part into this process, if they are compiled: tenths of a second."""
    if not missing([part]):
        importlib.import_module(PACKAGES[part][1]).fill_cache("float32")


def compile_part(part: str) -> None:
    """Compile the kernels of a part in a process of its own, unless they are compiled."""
    importlib.import_module(PACKAGES[part][1]).compile_kernels()  # imports Numba
