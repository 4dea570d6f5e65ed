"""Evaluation: compare trained policies with tuned schedules on held-out task families."""
