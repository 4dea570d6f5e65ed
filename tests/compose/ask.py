"""Asks a policy server from outside, with its token and without: `python -m tests.compose.ask HOST:PORT SECRETS`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from actors.serving.client.blocking import PolicyClient
from actors.sessions.refusal import Reason
from actors.sessions.session import PolicyError
from actors.slots.spaces import seed_spaces
from tests.support.serving.servers import step_inputs

STEPS = 4


def ask(address: str, secrets: Path) -> list[int]:
    """Versions of the weights that answered. Raises `AssertionError` where a stranger is let in."""
    spaces, certificate = seed_spaces(5), secrets / "serve.crt"
    with PolicyClient(address, root_certificates=certificate, token_file=secrets / "serve.token") as client:
        session = client.open(spaces)
        versions = [session.step(*step_inputs(0, step, spaces)).policy_version for step in range(STEPS)]
        session.close()
    with PolicyClient(address, root_certificates=certificate, token="not the token") as stranger:
        with pytest.raises(PolicyError) as refused:
            stranger.model()
        assert refused.value.reason == Reason.TOKEN_INVALID
    return versions


if __name__ == "__main__":
    print("answered by versions", ask(sys.argv[1], Path(sys.argv[2])))
