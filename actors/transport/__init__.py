"""Transport of episodes and weights between processes, through a Redis store."""
