"""Growing a user's own PyTorch model: slots in its modules, and a controller that applies a policy's decisions."""
