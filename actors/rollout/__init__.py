"""Rollouts: (environment fleet, policy) to complete episodes. No Ray, no Redis."""
