"""Releases: versions from tags, contents of sdist and wheel, and the wheel in a fresh environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path, PurePosixPath

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[3]
KINDS = {
    ".py", ".pyi", ".typed", ".lua", ".json", ".safetensors", ".j2", ".sh", ".acl", ".binpb", ".md", ".yaml", ".yml",
    "Dockerfile", ".conf", ".txt",
}  # fmt: skip
IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")


def run(*command: str | Path, cwd: Path) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHONPATH", "SETUPTOOLS_SCM", "GIT_"))}
    ended = subprocess.run(list(map(str, command)), cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def git(folder: Path, *command: str) -> None:
    run("git", *IDENTITY, *command, cwd=folder)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its files as they are here, without their history."""
    folder = tmp_path_factory.mktemp("project")
    names = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    for name in names:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
            (folder / name).chmod((ROOT / name).stat().st_mode)
    return folder


def build(project: Path, out: Path) -> tuple[Path, Path]:
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, project, cwd=project)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def version_of(wheel: Path) -> str:
    return wheel.name.split("-")[1]


def test_versions_come_from_tags(project: Path, tmp_path: Path) -> None:
    assert version_of(build(project, tmp_path / "no-git")[1]) == "0.1.0.dev0"
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "all")
    untagged = version_of(build(project, tmp_path / "no-tag")[1])
    assert re.fullmatch(r"0\.1\.\d+\.dev\d+\+g[0-9a-f]+", untagged), untagged
    git(project, "tag", "v1.2.3")
    sdist, wheel = build(project, tmp_path / "tag")
    assert (version_of(wheel), sdist.name) == ("1.2.3", "tamiyo-1.2.3.tar.gz")
    git(project, "commit", "-q", "--allow-empty", "-m", "more")
    assert version_of(build(project, tmp_path / "after")[1]).startswith("1.2.4.dev1+g")


def test_the_wheel_is_complete_and_works_in_a_fresh_environment(project: Path, tmp_path: Path) -> None:
    sdist, wheel = build(project, tmp_path / "dist")
    names = [PurePosixPath(name) for name in zipfile.ZipFile(wheel).namelist()]
    ours = [n for n in names if not n.parts[0].endswith(".dist-info")]
    assert {n.parts[0] for n in ours} == {"actors", "learner", "deploy", "tamiyo.py"}
    assert {n.suffix or n.name for n in ours if n.name != "py.typed"} <= KINDS
    assert not [n for n in ours if "__pycache__" in n.parts or "tests" in n.parts]
    tracked = run("git", "ls-files", "actors", "learner", "deploy", "tamiyo.py", cwd=ROOT).splitlines()
    assert {n for n in tracked if n.endswith((".py", ".lua", ".j2", ".safetensors"))} <= {str(n) for n in ours}
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "constraints.txt", "LICENSE", "README.md", "proto/actors/wire/episode.proto"} <= inside

    room = tmp_path / "room"
    venv.create(room, with_pip=True)
    python = room / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    # What it depends on is installed already, beside this Python: found, but no other tamiyo with it.
    place = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    (place / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    show = "import actors, deploy, learner, tamiyo; print(*(m.__file__ for m in (actors, deploy, learner, tamiyo)))"
    told = run(python, "-c", show, cwd=tmp_path)
    assert all(path.startswith(str(place)) for path in told.split())
    command = room / "bin" / "tamiyo"
    assert run(command, "--version", cwd=tmp_path) == f"tamiyo {version_of(wheel)}\n"
    assert "spirals" in run(command, "tasks", cwd=tmp_path)
    assert "usage" in run(command, "train", "--help", cwd=tmp_path)
    model = "import torch, tamiyo; m = torch.nn.Linear(2, 2); o = torch.optim.SGD(m.parameters()); "
    run(python, "-c", model + "tamiyo.GrowthController(m, [''], o, horizon_epochs=3)", cwd=tmp_path)
