"""The factored recurrent PPO update, from episodes to gradient steps."""
