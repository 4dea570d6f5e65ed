"""`tamiyo study --tables`: tables match the records of the study, and the rest of the page is unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.cli import main
from deploy.evaluation import study
from deploy.evaluation.page import write_page
from deploy.evaluation.players import CHOOSER
from deploy.evaluation.results import Results, with_sweeps
from tests.support.made_up_rows import made_up_rows

ROOT = Path(__file__).parents[3]
PAGE = """# Words

<!-- made targets headline -->
old
<!-- end -->
<!-- made lines headline -->
<!-- end -->
<!-- made families headline -->
<!-- end -->
<!-- made widths headline -->
<!-- end -->
between
<!-- made against headline -->
<!-- end -->
<!-- made costs -->
<!-- end -->
<!-- made picture headline/sweep.png -->
<!-- end -->
<!-- made curve main-1 -->
<!-- end -->
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study with two groups of policies and one evaluation."""
    tmp_path = tmp_path_factory.mktemp("study")
    path = tmp_path / "study.yaml"
    path.write_text(
        f"""
name: tiny
preset: quick
root: {tmp_path}/runs
results: {tmp_path}/results
trainings: [{{name: main, seeds: [1, 2], minutes: 1}}, {{name: flat, seeds: [1], minutes: 1}}]
evaluations: [{{name: headline, policies: [main], also: [flat]}}]
"""
    )
    asked = study.read_study(path)
    for training, minutes in zip(asked.trainings, (3.0, 4.0, 2.5), strict=True):
        told = {"updates": 7, "episodes": 448}
        asked.folder(training.name).mkdir(parents=True)
        asked.run_dir(training.name).mkdir(parents=True)
        (asked.run_dir(training.name) / study.CURVE).write_text("minutes,paid\n0.1,-1.0\n2.0,1.5\n")
        study._record(asked, training, ["train"], 0.0, told | {"wall_minutes": minutes, "cores": 4})
    rows = made_up_rows(noise=0.001)
    rows["flat"] = rows[CHOOSER]
    folder = asked.folder("headline")
    folder.mkdir()
    write_page(Results(with_sweeps(rows), resamples=100), folder, [], "")
    study._record(asked, asked.evaluations[0], ["evaluate"], 0.0, {"core_minutes": 4.0})
    return path


def test_tables_match_the_records(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "told.md"
    page.write_text(PAGE)
    assert main(["study", str(finished), "--tables", str(page)]) == 0
    assert "8 updated" in capsys.readouterr().out
    text = page.read_text()
    assert "old\n" not in text
    assert text.startswith("# Words\n")
    assert "\nbetween\n" in text
    assert "| probability of improvement over it | 1.00 [1.00, 1.00] | at least 0.65 | met |" in text
    assert "| built wider x2 | 1 | +1.25 [" in text
    assert "| b | +2.94 | +0.62 | +1.56 | +0.88 | +0.63 |" in text
    assert "| 2 to 4 | 6 |" in text
    assert "| flat | 1 | +1.56 [" in text
    assert "| -1.38 [-1.38" in text  # of the recipe against the base
    assert "| main | 2 | 7 | 896 | 3.0 to 4.0 | 28 |" in text
    assert "| **all** |  |  |  |  | **42** |" in text
    assert (tmp_path / "told" / "main-1.png").stat().st_size > 5000
    assert (tmp_path / "told" / "headline-sweep.png").stat().st_size > 5000
    assert main(["study", str(finished), "--tables", str(page)]) == 0
    assert page.read_text() == text  # made twice, it is the same


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ("colours headline", "unknown table 'colours'"),
        ("targets other", "other first"),
        ("curve main-9", "no curve at"),
    ],
)
def test_missing_results_and_unknown_tables_are_reported(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], block: str, reason: str
) -> None:
    page = tmp_path / "told.md"
    page.write_text(f"<!-- made {block} -->\nas it was\n<!-- end -->\n")
    assert main(["study", str(finished), "--tables", str(page)]) == 2
    assert reason in capsys.readouterr().err
    assert "as it was" in page.read_text()
    assert main(["study", str(finished), "--tables", str(tmp_path / "none.md")]) == 2
    assert "no page at" in capsys.readouterr().err
