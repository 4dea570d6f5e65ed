"""The parts of the headroom gate: its cells and what is computed from them."""
