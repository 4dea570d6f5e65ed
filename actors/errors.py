"""The base class of errors that are shown to the user: one line that says what was wrong and what to do."""

from __future__ import annotations


class UserError(Exception):
    """Bad input or a missing service. Entry points print only the message and exit with status 2."""
