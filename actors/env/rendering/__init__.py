"""Pictures of episodes, and the colors of all charts."""
