"""The supervisor of a run and what it runs: the learner actor, the monitor, and its handle on a cluster."""
