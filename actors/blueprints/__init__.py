"""Blueprints: the architectures that seeds can have, by host family; and blends, which join a seed to its host."""
