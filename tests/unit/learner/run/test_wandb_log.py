"""Weights & Biases without a network: what is written offline is read back."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from actors.errors import UserError
from learner.run.metrics_log import MetricsLog

wandb = pytest.importorskip("wandb", reason="the extra `wandb` is not installed")


BLOCK, FULL, FIRST, LAST = 32768, 1, 2, 4


def records(path: Path) -> Iterator[bytes]:
    """Of a file in the format of LevelDB, after seven bytes of its own: blocks of records, each behind a checksum,
    a length and a type."""
    data, at, whole = path.read_bytes(), 7, b""
    assert data.startswith(b":W&B")
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        part = data[at + 7 : at + 7 + length]
        whole = part if kind in (FULL, FIRST) else whole + part
        if kind in (FULL, LAST):
            yield whole
        at += 7 + length


def written(run_dir: Path) -> list[dict[str, float]]:
    """Rows of all of the run's files, oldest first."""
    from wandb.proto import wandb_internal_pb2

    found = []
    for path in sorted(run_dir.glob("wandb/offline-run-*/*.wandb"), key=lambda p: p.stat().st_mtime):
        for data in records(path):
            record = wandb_internal_pb2.Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                found.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item})
    return found


@pytest.mark.slow
def test_a_run_and_its_resumption_are_one_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"learner": {"lr": 0.5}, "run": {"redis": "redis://h"}}))
    for update in (1, 2):
        with closing(MetricsLog(tmp_path, tmp_path, update - 1, wandb="a-project")) as log:
            log.write(update, {"return_mean": 10.0 * update, "entropy/op": 0.5})
    rows = [{k: row[k] for k in ("update", "return_mean", "entropy/op")} for row in written(tmp_path)]
    assert rows == [{"update": u, "return_mean": 10.0 * u, "entropy/op": 0.5} for u in (1, 2)]
    name = (tmp_path / "wandb_id").read_text()
    assert len(list(tmp_path.glob(f"wandb/offline-run-*/run-{name}.wandb"))) == 2
    kept = b"".join(p.read_bytes() for p in tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert b"redis://h" not in kept


def test_a_missing_package_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match="pip install"):
        MetricsLog(tmp_path, tmp_path, 0, wandb="a-project")


def test_without_a_project_the_package_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with closing(MetricsLog(tmp_path, tmp_path, 0)) as log:
        log.write(1, {"return_mean": 1.0})
    assert not (tmp_path / "wandb_id").exists()
