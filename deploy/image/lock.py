"""Write lock.txt and lock.cuda.txt: the packages of the image with their versions and accepted hashes (`make lock`).

Versions come from constraints.txt, files from the indexes that pip is configured for. lock.cuda.txt holds the
additional packages of PyTorch's CUDA build, if pip finds all of them. Files are for CPython 3.11, the Python of
Debian 12, on Linux.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
GLIBC = ("2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")  # of manylinux tags, up to Debian 12's
OLD = ("manylinux2014", "manylinux2010", "manylinux1", "linux")
BESIDES = ("hatchling", "hatch-vcs", "async-timeout")  # for the build, and of Python before 3.11.3 (Debian's)
CUDA = re.compile(r"nvidia-|cuda-|triton$")
HEADER = "# Made by `make lock`; pip takes a file only where its hash is one of these.\n"
Locked = dict[str, tuple[str, set[str]]]  # name > version and hashes


def report(machine: str, *arguments: str) -> list[dict[str, Any]]:
    """Return the packages that pip would install on a machine architecture."""
    platforms = [*(f"manylinux_{v}_{machine}" for v in GLIBC), *(f"{kind}_{machine}" for kind in OLD)]
    with tempfile.TemporaryDirectory() as folder:
        target = ["--target", folder, "--only-binary=:all:", "--python-version=3.11", "--implementation=cp"]
        kinds = [f"--abi={abi}" for abi in ("cp311", "abi3", "none")] + [f"--platform={p}" for p in platforms]
        file = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", *target, *kinds]
        subprocess.run([*command, "--report", str(file), *arguments], check=True)
        installed: list[dict[str, Any]] = json.loads(file.read_text())["install"]
        return installed


def add(locked: Locked, found: list[dict[str, Any]]) -> None:
    """Add packages, with version and hash, to `locked`."""
    for package in found:
        name = re.sub(r"[-_.]+", "-", package["metadata"]["name"]).lower()
        version = package["metadata"]["version"].partition("+")[0]  # builds of one version differ by hash
        locked[name][1].add(package["download_info"]["archive_info"]["hashes"]["sha256"])
        locked[name] = (version, locked[name][1])


def text(locked: Locked, cuda: bool) -> str:
    """Format the lock file of CUDA's packages, or of all others."""
    lines = [
        f"{name}=={version}" + "".join(f" \\\n    --hash=sha256:{h}" for h in sorted(hashes)) + "\n"
        for name, (version, hashes) in sorted(locked.items())
        if bool(CUDA.match(name)) == cuda
    ]
    return HEADER + "".join(lines)


def main(options: list[str]) -> None:
    """Write the lock files. `options` are passed to pip, such as `--extra-index-url URL`."""
    needs: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    wanted = [line.replace("ray[default,rllib]", "ray[default]") for line in needs]  # RLlib is large, and no service's
    constraints = [*options, "-c", str(ROOT / "constraints.txt")]
    locked: Locked = defaultdict(lambda: ("", set()))
    add(locked, report("x86_64", *constraints, *BESIDES, *wanted))
    version = locked["torch"][0]
    cuda = f"torch=={version}, !={version}+cpu"
    try:
        add(locked, report("x86_64", *constraints, cuda))
    except subprocess.CalledProcessError:
        add(locked, report("x86_64", *options, "--no-deps", cuda))
        print("pip does not find the packages of PyTorch's CUDA build: lock.cuda.txt is not written")
    pins = [f"{name}=={version}" for name, (version, _) in locked.items() if not CUDA.match(name)]
    add(locked, report("aarch64", *options, "--no-deps", *pins))
    (FOLDER / "lock.txt").write_text(text(locked, cuda=False))
    (FOLDER / "lock.cuda.txt").unlink(missing_ok=True)
    if any(map(CUDA.match, locked)):
        (FOLDER / "lock.cuda.txt").write_text(text(locked, cuda=True))


if __name__ == "__main__":
    main(sys.argv[1:])
