"""The types and docstrings of configuration fields: conversion of values, with messages that say what to give."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import itertools
import textwrap
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import yaml

from actors.config import ConfigError


def convert(value: object, hint: Any, where: str) -> Any:
    """Convert `value` to the type `hint`. A bool is not a number; `1e-3` is one, although YAML 1.1 reads it as text.
    Raises `ConfigError`."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        words = [word for a in args if get_origin(a) is Literal for word in get_args(a)]
        if value in words:
            return value
        plain = [a for a in args if a is not type(None) and get_origin(a) is not Literal]
        try:
            ranges = [a for a in plain if get_origin(a) is tuple]
            return convert(value, ranges[0] if ranges and isinstance(value, list) else plain[0], where)
        except ConfigError as error:
            raise ConfigError(" or ".join([str(error), *words])) from error
    if origin is Literal:
        if value not in args:
            raise ConfigError(f"{where} is {show(value)}: give one of {', '.join(map(str, args))}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{where} is {show(value)}: give a list, such as [a, b]")
        if Ellipsis not in args and len(value) != len(args):
            raise ConfigError(f"{where} has {len(value)} entries: give one number, or a range as [low, high]")
        return tuple(convert(v, args[0], f"{where}[{i}]") for i, v in enumerate(value))
    if hint is float:
        try:
            if isinstance(value, (int, float, str)) and not isinstance(value, bool):
                return float(value)
        except ValueError:
            pass
        raise ConfigError(f"{where} is {show(value)}: give a number")
    if hint is Path and isinstance(value, str):
        return Path(value)
    if type(value) is not hint:
        wanted = {int: "an integer", bool: "true or false", str: "a string"}[hint]
        raise ConfigError(f"{where} is {show(value)}: give {wanted}")
    return value


def parse_words(words: list[str], hint: Any) -> object:
    """Return what the words after a flag stand for, as YAML would read them where `hint` is not text."""
    if accepts_several(hint) and (len(words) != 1 or get_origin(hint) is tuple):
        return [_parse_word(word, hint) for word in words]
    return _parse_word(words[0], hint)


def accepts_several(hint: Any) -> bool:
    """Whether a value of this type may be a list."""
    return any(get_origin(part) is tuple for part in (hint, *get_args(hint)))


def _parse_word(word: str, hint: Any) -> object:
    if word in ("null", "none") and type(None) in get_args(hint):
        return None
    if {str, Path} & {hint, *get_args(hint)}:
        return word
    try:
        return yaml.safe_load(word)
    except (yaml.YAMLError, ValueError):
        return word


def show(value: object) -> str:
    """Describe a wrong value in an error message."""
    if value is None or isinstance(value, bool):
        return str(yaml.safe_dump(value)).split("\n")[0]
    return f"a {type(value).__name__}" if isinstance(value, (Mapping, list)) else repr(value)


def suggest(name: str, known: list[str]) -> str:
    """Suggest the closest known name, or list all known names if there are few."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; choose one of {', '.join(known)}" if len(known) <= 20 else ""


def field_docs(cls: type) -> dict[str, str]:
    """Return the docstring below each field of a dataclass, joined to one line."""
    docs = {}
    for owner in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(body, ast.ClassDef)
        for pair in itertools.pairwise(body.body):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text)):
                    docs[name] = " ".join(str(text).split())
    return docs
