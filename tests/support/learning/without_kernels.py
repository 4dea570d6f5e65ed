"""The update as it runs where there are no kernels, such as on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from actors.policy.network import FactoredRecurrentActorCritic


@contextmanager
def without_kernels() -> Iterator[None]:
    with patch.object(FactoredRecurrentActorCritic, "_uses_kernels", lambda *_: False):
        yield
