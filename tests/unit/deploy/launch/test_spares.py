"""Where actors have spares."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actors.config import ActorsConfig
from deploy.config.schema import Config
from deploy.launch.process_settings import acting


@pytest.mark.parametrize(("address", "spares"), [("", 1), ("auto", 0), ("head:6379", 0)])
def test_only_runs_on_one_machine_have_spares(address: str, spares: int) -> None:
    config = Config()
    config = replace(config, run=replace(config.run, address=address, redis="redis://h:1" if address else ""))
    assert acting(config).actors.spares == spares


def test_the_number_of_spares_is_not_negative() -> None:
    with pytest.raises(ValueError, match="spares"):
        ActorsConfig(spares=-1)
