"""Inference-only forms of the policy: a fused step, TorchScript and `torch.export`."""
