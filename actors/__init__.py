"""Acting: environments, the policy, rollouts, the episode format and the transport that carries it."""
