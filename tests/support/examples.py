"""How many examples a property test plays: few in `make test`, the same each time; many in `make test-long`."""

from __future__ import annotations

import hypothesis

EXPLORE = "explore"
"""The profile of `make test-long`."""


def exploring() -> bool:
    return hypothesis.settings.get_current_profile_name() == EXPLORE


def examples(usual: int) -> int:
    """Return the number of examples under the profile in use."""
    return 10 * usual if exploring() else usual // 3
