"""Ray instances and their environments: on one machine, and the head and the workers of a cluster."""
