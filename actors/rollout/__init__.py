"""Rollouts: run a policy in a fleet of environments and record episodes. No Ray, no Redis."""
