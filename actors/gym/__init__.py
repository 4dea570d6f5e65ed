"""Fleets of Gymnasium environments, from vector environments of any kind."""
