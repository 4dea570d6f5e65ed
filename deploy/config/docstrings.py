"""The docstrings below the fields of a dataclass, for `--help` and for the reference pages."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap


def field_docs(cls: type) -> dict[str, str]:
    """Return the docstring below each field of a dataclass, joined to one line."""
    docs = {}
    for owner in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(body, ast.ClassDef)
        for line, after in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(line, ast.AnnAssign)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                assert isinstance(line.target, ast.Name)
                docs[line.target.id] = " ".join(str(after.value.value).split())
    return docs
