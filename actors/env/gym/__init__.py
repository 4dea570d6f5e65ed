"""Gymnasium environments: vector environments of any kind as a fleet."""
