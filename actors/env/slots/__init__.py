"""The slots of one host: stages, legal actions, contributions, topology, and what the policy observes of them."""
