"""The update as it runs where there are no kernels, such as on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from actors.policy.network import FactoredRecurrentActorCritic
from learner.ppo import objective, optimizer


@contextmanager
def without_kernels() -> Iterator[None]:
    with (
        patch.object(FactoredRecurrentActorCritic, "_uses_kernels", lambda *_: False),
        patch.object(optimizer, "on_cpu", lambda _: False),
        patch.object(objective, "has_kernel", lambda *_: False),
    ):
        yield
