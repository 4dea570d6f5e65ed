"""`compile_once`: compiles kernels once per machine, always in a process of its own.

In the process that compiles them, kernels call functions that were compiled one by one on the way; in a process that
loads them from the cache, they call the copies inside the cached object, which LLVM has optimized once more. The two
round differently. So that all processes compute the same bits, the process that compiles only writes the cache.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import numba

from actors.kernels.cache import cache_dir, is_compiled, mark

CHILD = """
import importlib, sys
sys.path[:] = sys.argv[3:]
importlib.import_module(sys.argv[1]).fill_cache(sys.argv[2])
"""


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
