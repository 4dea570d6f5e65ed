"""The one kind of error that a person is meant to read: one clear line that says what was wrong and what to do."""

from __future__ import annotations


class UserError(Exception):
    """Bad input or a missing service. Entry points print the message alone and exit with status 2."""
