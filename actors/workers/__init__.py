"""Rollout workers: sampling, shipping episodes and fetching weights, as Ray actors in a supervised pool."""
