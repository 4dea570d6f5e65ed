"""Growing somebody's own model: slots in a PyTorch module, and a controller that a policy tells what to do there."""
