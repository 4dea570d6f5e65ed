"""Learning: batches of episodes in, better weights out."""
