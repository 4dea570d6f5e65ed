"""Whatever the bytes, decoders raise only documented errors and use memory in proportion to the input."""

from __future__ import annotations

import ast
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.fuzz.damage import damaged, misfilled
from tests.fuzz.decoders import decoders
from tests.support.examples import examples

ROOT = Path(__file__).parents[3]
NAMES = list(decoders())
JSON = ("manifest", "manifest under its seal", "header of a checkpoint", "growth")
FEW = settings(max_examples=examples(90), deadline=None, suppress_health_check=list(HealthCheck))
UNSAFE = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}


@pytest.mark.parametrize("name", NAMES)
def test_valid_bytes_are_accepted(name: str) -> None:
    decoder = decoders()[name]
    assert all(map(decoder, decoder.samples))


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(data=st.data())
@example(data=None)
def test_damaged_bytes_raise_only_documented_errors(name: str, data: st.DataObject | None) -> None:
    decoder = decoders()[name]
    if data is None:
        decoder(b"")
        return
    some = data.draw(st.one_of(damaged(decoder.samples), st.binary(max_size=300)))
    within(decoder, some)


@pytest.mark.parametrize("name", JSON)
@FEW
@given(data=st.data())
def test_damaged_json_values_raise_only_documented_errors(name: str, data: st.DataObject) -> None:
    decoder = decoders()[name]
    within(decoder, data.draw(misfilled(decoder.samples)))


def within(decoder: object, data: bytes) -> None:
    """Check that the memory allocated by Python and numpy is bounded by a multiple of the input size."""
    tracemalloc.start()
    try:
        decoder(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 * len(data) + 2**24


def test_pickle_is_used_nowhere() -> None:
    """Neither pickle itself nor functions of libraries that use it are called."""
    for path in (p for room in ("actors", "learner", "deploy") for p in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(alias.name for alias in node.names)]
            assert not UNSAFE & {part for name in names for part in name.split(".")}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called, options = ast.unparse(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords}
                assert called not in ("yaml.load", "yaml.unsafe_load", "numpy.fromfile"), path
                assert called != "torch.load" or options.get("weights_only") == "True", path
                assert options.get("allow_pickle", "False") == "False", path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "__import__"), path
