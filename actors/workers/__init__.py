"""Rollout workers, their outbox and weights, as Ray actors and as a pool of them."""
