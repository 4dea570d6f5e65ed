"""The factored recurrent PPO update, from batches of episodes to a gradient step."""
