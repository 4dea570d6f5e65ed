"""Where machine code is kept, by the sources it comes from.

A compiled function holds the code of those it calls, but Numba looks it up by its own file alone: the sources of all
kernels together name the folder, so that none is ever run with another's old code inside.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path


@cache
def folder() -> Path:
    """In the user's cache; in a temporary folder where that cannot be written."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        # Numba also wants the very file that it compiled: another checkout is another folder
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
    """Whether the machine code of this precision is there already."""
    return _mark(dtype).exists()


def note_compiled(dtype: str) -> None:
    _mark(dtype).touch()


def _mark(dtype: str) -> Path:
    return folder() / f"compiled-{dtype}"
