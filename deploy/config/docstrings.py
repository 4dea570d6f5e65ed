"""The docstrings below the fields of a dataclass, for `--help` and for the reference pages."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from types import MappingProxyType


def field_docs(cls: type) -> dict[str, str]:
    """Return the docstring below each field of a dataclass, joined to one line."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for line, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(line, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            assert isinstance(line.target, ast.Name)
            docs[line.target.id] = " ".join(str(after.value.value).split())
    return docs


def set_help(cls: type) -> None:
    """Store the field docstrings of `cls` where tyro looks first; by itself it keeps the line breaks of the source."""
    docs = field_docs(cls)
    for field in dataclasses.fields(cls):
        if field.name in docs:
            field.metadata = MappingProxyType({**field.metadata, "help": docs[field.name]})
