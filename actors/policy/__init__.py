"""The policy network, shared by actors, learner and server."""
