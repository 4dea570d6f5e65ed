"""`tamiyo tasks`: the table, the JSON output, and error messages."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from actors.env.tasks import families
from deploy import cli
from deploy.commands.tasks import show_tasks
from deploy.config.flags import parse


def test_json_describes_every_family(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tasks", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == [f.name for f in families()]
    spirals = rows["spirals"]
    assert (spirals["split"], spirals["kind"], spirals["rows"]["val"]) == ("train", "vector", 512)
    assert (spirals["features"], spirals["classes"], spirals["host_widths"]) == (2, 3, [2, 32])
    # The stem, three blocks and the classes, the latter two with a norm.
    wanted = [3 * w + 3 * (w * w + 3 * w) + 2 * w + 3 * w + 3 for w in (2, 32)]
    assert (spirals["host_params"], spirals["chance_accuracy"]) == (wanted, 33.33)
    small = spirals["growth"][0]
    assert small["width"] == 3
    assert small["column"]["free"]["mean"] > small["column"]["priced"]["mean"] > 5
    assert rows["cifar10"]["features"] is None  # the files are not available
    assert rows["signals"]["shape"] == [1, 40]
    # Stem 1x5 and its norm, three blocks with kernels of 3 and theirs, the last norm, and the classes.
    wanted = [7 * w + 3 * (3 * w * w + 2 * w) + 2 * w + 10 * w + 10 for w in (2, 16)]
    print(rows["signals"]["host_params"], wanted)
    assert rows["signals"]["host_params"] == wanted


def test_the_table_shows_all_columns() -> None:
    out = io.StringIO()
    assert show_tasks([], None, False, Console(file=out, width=180)) == 0
    text = out.getvalue()
    for word in ("split", "kind", "rows", "features", "classes", "host", "params", "chance", "small", "large"):
        assert word in text
    line = next(line for line in text.splitlines() if line.startswith("digits "))
    assert line.split()[:9] == ["digits", "train", "vector", "898/539/360", "64", "10", "2-32", "194-5834", "10"]
    assert float(line.split()[11]) > 10  # what a column gains in a small host
    assert "1x8x8" in text


def test_no_column_is_truncated_without_a_terminal() -> None:
    out = io.StringIO()
    show_tasks([], None, False, Console(file=out, width=80))
    assert "classification_noisy" in out.getvalue()
    assert "…" not in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) > 100


def test_only_named_families_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tasks", "moons", "xor", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["moons", "xor"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["moon"], "'moon', which is not a task; did you mean 'moons'?"),
        (["--jsn"], "unrecognized arguments: --jsn"),
        (["--data_dir"], "expected one argument"),
        (["nowhere:x"], "'nowhere:x' cannot be imported"),
        (["cifar10", "--data_dir", "/nowhere"], "/nowhere has no folder cifar-10-batches-py"),
    ],
)
def test_invalid_arguments_give_a_one_line_error(
    args: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tasks", *args]) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert (out, err.count("\n")) == ("", 1)


@pytest.mark.parametrize("command", [["tasks", "cifar10"], ["train", "--task", "cifar10"]], ids=["tasks", "train"])
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "needs torchvision: pip install 'tamiyo[vision]'"),
        (["absent"], "absent has no folder cifar-10-batches-py; set env.data_dir to its parent folder"),
    ],
)
def test_a_missing_data_set_is_reported_in_one_line(
    command: list[str],
    flags: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The error comes before anything is started or written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    (tmp_path / "cifar-10-batches-py").mkdir()
    folder = str(tmp_path.joinpath(*flags))
    assert cli.main([*command, "--data_dir" if command[0] == "tasks" else "--env.data_dir", folder]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert (err.count("\n"), [p.name for p in tmp_path.iterdir()]) == (1, ["cifar-10-batches-py"])


def test_help_does_not_import_heavy_packages() -> None:
    code = (
        "import sys; from deploy.cli import main; main(['tasks', '--help']);"
        "sys.exit(str({'torch', 'sklearn', 'scipy'} & set(sys.modules) or ''))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stderr.strip() == ""
    assert "mypkg:factory" in ended.stdout


def test_task_is_short_for_env_tasks() -> None:
    config, *_ = parse("train", ["--task", "mypkg:factory", "--preset", "quick"], resumable=True)
    assert config.env.tasks == ("mypkg:factory",)
