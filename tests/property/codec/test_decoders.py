"""Whatever the bytes, decoders raise only documented errors and use memory in proportion to the input."""

from __future__ import annotations

import ast
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.damage import damaged, misfilled
from tests.fuzz.decoders import decoders
from tests.support.examples import examples

ROOT = Path(__file__).parents[3]
FEW = settings(max_examples=examples(90), deadline=None, suppress_health_check=list(HealthCheck))
JSON = ("manifest", "manifest under its seal", "header of a checkpoint", "growth")
UNSAFE = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}


def scrambled(samples: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    return st.one_of(damaged(samples), st.binary(max_size=300), st.just(b""))


@pytest.mark.parametrize("name", decoders())
def test_valid_bytes_are_accepted(name: str) -> None:
    decoder = decoders()[name]
    assert all(map(decoder, decoder.samples))


@pytest.mark.parametrize(
    ("name", "damage"), [*((name, scrambled) for name in decoders()), *((name, misfilled) for name in JSON)]
)
@FEW
@given(data=st.data())
def test_damaged_data_raise_only_documented_errors(name: str, damage: Any, data: st.DataObject) -> None:
    """The memory allocated by Python and numpy is bounded by a multiple of the input size."""
    decoder = decoders()[name]
    some = data.draw(damage(decoder.samples))
    tracemalloc.start()
    try:
        decoder(some)
        assert tracemalloc.get_traced_memory()[1] < 32 * len(some) + 2**24
    finally:
        tracemalloc.stop()


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
