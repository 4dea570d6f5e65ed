"""Layers of hosts and seeds: convolution, BatchNorm and LayerNorm."""
