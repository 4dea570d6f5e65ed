"""The policy evaluated on sequences of steps, and the gradient of that."""
