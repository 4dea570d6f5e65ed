"""`tamiyo tasks`: the table, and error messages."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from actors.env.tasks import families
from deploy import cli
from deploy.commands.tasks import show_tasks


def test_the_table_describes_every_family_in_a_narrow_terminal() -> None:
    out = io.StringIO()
    assert show_tasks([], None, Console(file=out, width=80)) == 0
    lines = {line.split()[0]: line.split() for line in out.getvalue().splitlines()}
    assert {f.name for f in families()} <= lines.keys()
    assert "…" not in out.getvalue()
    head = "task split kind rows features classes host params chance small medium large"
    assert lines["task"] == head.split()
    assert lines["digits"][:9] == ["digits", "train", "vector", "898/539/360", "64", "10", "2-32", "194-5834", "10"]
    assert float(lines["digits"][11]) > 10  # what a column gains in a small host
    assert lines["spirals"][3:6] == ["512/1024/1024", "2", "3"]
    # The stem, three blocks and the classes, the latter two with a norm.
    wanted = [3 * w + 3 * (w * w + 3 * w) + 2 * w + 3 * w + 3 for w in (2, 32)]
    assert lines["spirals"][7] == "-".join(map(str, wanted))
    # Stem 1x5 and its norm, three blocks with kernels of 3 and theirs, the last norm, and the classes.
    wanted = [7 * w + 3 * (3 * w * w + 2 * w) + 2 * w + 10 * w + 10 for w in (2, 16)]
    assert (lines["signals"][4], lines["signals"][7]) == ("1x40", "-".join(map(str, wanted)))
    assert lines["cifar10"][4:6] == ["-", "-"]  # the files are not available


def test_only_named_families_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tasks", "moons", "xor"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[:3]] == ["task", "moons", "xor"]


def test_a_missing_extra_is_reported_before_anything_is_started_or_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    (tmp_path / "cifar-10-batches-py").mkdir()
    for command in (["tasks", "cifar10", "--data_dir"], ["train", "--task", "cifar10", "--env.data_dir"]):
        assert cli.main([*command, str(tmp_path)]) == 2
        err = capsys.readouterr().err
        assert "needs torchvision: pip install 'tamiyo[vision]'" in err
        assert (err.count("\n"), [p.name for p in tmp_path.iterdir()]) == (1, ["cifar-10-batches-py"])
