"""Recurrent cores: one step, and whole sequences in length buckets."""
