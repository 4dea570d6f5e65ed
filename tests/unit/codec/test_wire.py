"""The committed descriptors and stubs match the .proto files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_what_is_generated_is_current(tmp_path: Path) -> None:
    command = [ROOT / "deploy" / "protoc.sh", tmp_path]
    subprocess.run(command, check=True, env={**os.environ, "PYTHON": sys.executable})
    generated = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.*")}
    wire = ROOT / "actors" / "wire"
    committed = {path.relative_to(ROOT): path.read_bytes() for path in (*wire.glob("*.binpb"), *wire.glob("*.pyi"))}
    assert generated
    assert generated == committed, "run deploy/protoc.sh"


def test_the_proto_folder_contains_only_definitions() -> None:
    others = [path for path in (ROOT / "proto").rglob("*") if path.is_file() and path.suffix != ".proto"]
    assert [path for path in others if path.name != "buf.yaml"] == []
