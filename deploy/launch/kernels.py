"""The modules that compile the kernels of each part of Tamiyo (see `actors.kernels.compile`)."""

from __future__ import annotations

import importlib

from actors.kernels.cache import is_compiled

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


def compile_part(part: str) -> None:
    """Compile the kernels of a part in a process of its own, unless they are compiled."""
    importlib.import_module(PACKAGES[part][1]).compile_kernels()  # imports Numba
