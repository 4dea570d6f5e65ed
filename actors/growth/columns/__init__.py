"""Columns of a user's model: what grows beside it, how it starts, and how it is exported."""
