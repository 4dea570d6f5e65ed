"""What a run keeps: its checkpoints, its lineage, its state and its metrics."""
