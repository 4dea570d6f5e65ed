"""`compile_once`: compiles kernels once per machine, always in a process of its own.

In the process that compiles them, kernels call functions that were compiled one by one on the way; in a process that
loads them from the cache, they call the copies inside the cached object, which LLVM has optimized once more. The two
round differently. So that all processes compute the same bits, the process that compiles only writes the cache.

In that process LLVM optimizes modules only where Python calls a kernel, with all functions that it calls inside. Numba
would also optimize each of these on its own, which takes half of the time and makes no kernel faster.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numba
from numba.core import codegen, event

from actors.kernels.cache import cache_dir, is_compiled, mark

CHILD = """
import sys
sys.path[:] = sys.argv[3:]
from actors.kernels.compile import fill_cache
fill_cache(*sys.argv[1:3])
"""


class Depth(event.Listener):
    """Counts the functions that are being compiled. A function is compiled when one that calls it needs its types."""

    def __init__(self) -> None:
        self.functions = 0

    def on_start(self, event: event.Event) -> None:
        """A function begins to be compiled."""
        self.functions += 1

    def on_end(self, event: event.Event) -> None:
        """It is compiled."""
        self.functions -= 1


def fill_cache(module: str, precision: str) -> None:
    """Call `fill_cache(precision)` of a module in this process, which must not run the kernels after that."""
    depth, library = Depth(), cast(Any, codegen.CPUCodeLibrary)
    event.register("numba:compile", depth)  # type: ignore[no-untyped-call]
    optimize = library._optimize_final_module  # Numba has no option for it
    library._optimize_final_module = lambda self: optimize(self) if depth.functions < 2 else None
    importlib.import_module(module).fill_cache(precision)


def compile_once(package: str, module: str, precision: str = "float32") -> None:
    """Call `fill_cache(precision)` of a module in a process of its own, unless the kernels of `package`, which it
    compiles, are compiled on this machine.

    Processes that need those of one precision at the same time wait for the first, since Numba's index of cached
    functions has no lock; the other precision has an index of its own. Raise `CalledProcessError` if the compiling
    process fails; its messages are on standard error.
    """
    if is_compiled(package, precision) or numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        return
    with (cache_dir(package) / f"lock-{precision}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_compiled(package, precision):
            # The order of sets must not decide what code is generated.
            environ = {**os.environ, "PYTHONHASHSEED": "0"}
            # A folder of the user's may hold a file with the name of one of our packages.
            ours = str(Path(__file__).parents[2])
            command = [sys.executable, "-c", CHILD, module, precision, ours, *sys.path]
            subprocess.run(command, env=environ, check=True)
            mark(package, precision).touch()
