"""Episodes and weights between processes: Protocols, an in-process twin, Redis."""
