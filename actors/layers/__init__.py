"""Layers of hosts and seeds: convolution, BatchNorm, LayerNorm, and the fusion of elementwise operations."""
