"""The acting side: environments, the policy, rollouts, the episode format and the transport that carries episodes."""
