"""Faults of actors: how they are described, where they are written, and what ends with an actor."""
