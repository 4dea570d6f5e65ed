"""Models as people write them: the training scripts in `examples/models`, played with rules and policies."""
