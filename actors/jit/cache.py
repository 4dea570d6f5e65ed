"""The folders that cache compiled kernels, named by a hash of all kernel sources, the compiler and the processor.

Compiled code includes the functions that it calls, but Numba invalidates its cache by the file of the outer function
alone. With a hash of all files, a change in one never leaves its old code inside another. Numba itself keeps code for
different processors apart; the processor is in the name because a mark that says "compiled" must be true of this one.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from importlib.metadata import version
from pathlib import Path


def processor() -> list[str]:
    """Return the name and the features of the processor that Numba compiles for."""
    from llvmlite import binding  # loads LLVM

    given = [os.environ.get(name, "") for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")]
    return [binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten(), *given]


def has_feature(name: str) -> bool:
    """Return whether Numba compiles for a processor with this feature, in LLVM's spelling, such as `avx512f`."""
    _, own, cpu_name, given = processor()
    return f"+{name}" in (given or ("" if cpu_name else own)).split(",")


def kernel_folder(name: str, *sources: Path) -> Path:
    """Make and return the folder of the kernels in the folders `sources`.

    It is in the user's cache, or in the temporary folder if that is not writable.
    """
    digest = hashlib.sha256(repr([version("numba"), version("llvmlite"), *processor()]).encode())
    for source in (path for folder in (*sources, Path(__file__).parent) for path in sorted(folder.glob("*.py"))):
        # Numba's cache is valid for one path and modification time only
        digest.update(f"{source} {source.stat().st_mtime_ns}".encode() + source.read_bytes())
    name = f"{name}-{digest.hexdigest()[:16]}"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tamiyo" / name
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError:
        home = Path(tempfile.gettempdir()) / f"tamiyo-{os.getuid()}" / name
        home.mkdir(parents=True, exist_ok=True)
    return home


def is_compiled(folder: Path, precision: str) -> bool:
    """Return whether all kernels of a folder are compiled for this precision."""
    return _mark(folder, precision).exists()


def mark_compiled(folder: Path, precision: str) -> None:
    """Record that all kernels of a folder are compiled for this precision."""
    _mark(folder, precision).touch()


def _mark(folder: Path, precision: str) -> Path:
    return folder / f"compiled-{precision}"
