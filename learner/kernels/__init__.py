"""Compiled parts of the update on a CPU: the loss with its gradient, the norm of gradients, and AdamW."""
