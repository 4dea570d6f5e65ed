"""The folder that caches compiled kernels, named by a hash of all kernel sources, the compiler and the processor.

Compiled code includes the functions that it calls, but Numba invalidates its cache by the file of the outer function
alone. With a hash of all files, a change in one never leaves its old code inside another. Numba itself keeps code for
different processors apart; the processor is in the name because `is_compiled` must be true of this one.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path


@cache
def cache_dir() -> Path:
    """Return the folder, in the user's cache; in the temporary folder if that is not writable."""
    from llvmlite import binding  # loads LLVM

    given = [os.environ.get(name, "") for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")]
    processor = [binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten(), *given]
    digest = hashlib.sha256(repr([version("numba"), version("llvmlite"), *processor]).encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        # Numba's cache is valid for one path and modification time only
        digest.update(f"{source} {source.stat().st_mtime_ns}".encode() + source.read_bytes())
    name = f"kernels-{digest.hexdigest()[:16]}"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tamiyo" / name
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError:
        home = Path(tempfile.gettempdir()) / f"tamiyo-{os.getuid()}" / name
        home.mkdir(parents=True, exist_ok=True)
    return home


def is_compiled(dtype: str) -> bool:
    """Return whether `compile_kernels` has run for this dtype."""
    return _mark(dtype).exists()


def mark_compiled(dtype: str) -> None:
    """Record that all kernels are compiled for this dtype."""
    _mark(dtype).touch()


def _mark(dtype: str) -> Path:
    return cache_dir() / f"compiled-{dtype}"
