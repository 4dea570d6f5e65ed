"""Compiled evaluation of whole sequences on a CPU, with its gradient."""
