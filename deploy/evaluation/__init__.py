"""Evaluation: trained policies against tuned schedules on task families that none of them was trained on."""
