"""The folders that cache compiled kernels, one for each package below this one, named by a hash of its sources and of
this package's, of the compiler and the processor.

Compiled code includes the functions that it calls, but Numba invalidates its cache by the file of the outer function
alone. With a hash of all files, a change in one never leaves its old code inside another. Numba itself keeps code for
different processors apart; the processor is in the name because a mark that says "compiled" must be true of this one.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from actors.errors import UserError


def processor() -> list[str]:
    """Return the name and the features of the processor that Numba compiles for."""
    from llvmlite import binding  # loads LLVM

    given = [os.environ.get(name, "") for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")]
    return [binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten(), *given]


def has_feature(name: str) -> bool:
    """Return whether Numba compiles for a processor with this feature, in LLVM's spelling, such as `avx512f`."""
    _, features, cpu_name, given = processor()
    return f"+{name}" in (given or ("" if cpu_name else features)).split(",")


@functools.cache
def cache_dir(package: str) -> Path:
    """Return the folder of the kernels in `actors.kernels.PACKAGE`."""
    return kernel_folder(package, Path(__file__).parent)


def kernel_folder(package: str, root: Path) -> Path:
    """Make and return the folder of the kernels of a package in `root`, which may use the modules there.

    It is in the user's cache or, if that cannot be written, in the temporary folder, with a copy of what is compiled
    already: Numba does not read a cache that it cannot write, such as that of a read-only image or of another user.
    Raises `UserError`.
    """
    digest = hashlib.sha256(repr([version("numba"), version("llvmlite"), *processor()]).encode())
    for source in sorted([*root.glob("*.py"), *(root / package).rglob("*.py")]):
        # Numba's cache is valid for one path and modification time only
        digest.update(f"{source} {source.stat().st_mtime_ns}".encode() + source.read_bytes())
    name = f"{package}-{digest.hexdigest()[:16]}"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tamiyo" / name
    with suppress(OSError):
        home.mkdir(parents=True, exist_ok=True)
    if os.access(home, os.W_OK):
        return home
    private = Path(tempfile.gettempdir()) / f"tamiyo-{os.getuid()}"
    try:
        private.mkdir(mode=0o700, exist_ok=True)
        if private.stat().st_uid != os.getuid():  # whose kernels would run as this user
            raise UserError(f"{private} belongs to another user: set XDG_CACHE_HOME to a folder that you can write")
        return _copied(home, private / name)
    except OSError as error:
        raise UserError(
            f"there is no folder for compiled kernels, neither {home.parent} nor {private} ({error.strerror}): set "
            "XDG_CACHE_HOME to a folder that you can write"
        ) from error


def _copied(source: Path, folder: Path) -> Path:
    """Return `folder`, made with a copy of `source` if there is one."""
    if not folder.exists():
        unfinished = Path(tempfile.mkdtemp(dir=folder.parent))
        try:
            shutil.copytree(source, unfinished, dirs_exist_ok=True)
        except OSError:  # it is incomplete, so that all is compiled again
            shutil.rmtree(unfinished)
            unfinished.mkdir()
        with suppress(OSError):  # another process was faster
            unfinished.rename(folder)
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def is_compiled(package: str, precision: str = "float32") -> bool:
    """Return whether the kernels of a package are compiled for this precision."""
    return mark(package, precision).exists()


def mark(package: str, precision: str) -> Path:
    """Return the file that says so."""
    return cache_dir(package) / f"compiled-{precision}"
