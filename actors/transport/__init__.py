"""Transport of episodes and weights between processes: Protocols, implemented in memory and on Redis."""
