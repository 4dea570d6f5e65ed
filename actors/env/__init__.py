"""Seed-training environments: hosts that grow while they train."""
