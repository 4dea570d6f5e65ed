"""Small tasks for convolutional hosts, which all tests of fleets know."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.env import cnn


@pytest.fixture(autouse=True)
def _known_tasks() -> Iterator[None]:
    cnn.register()
    yield
    cnn.forget()
