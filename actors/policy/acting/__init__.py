"""The policy in programs that only act: fewer operations, TorchScript, and torch.export."""
