"""Pretraining by imitation: the demonstrations of a teacher and of files, and the policy that imitates them."""
