"""The one policy, used by actor, learner and server."""
