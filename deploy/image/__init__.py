"""What deploy/Dockerfile runs while it builds."""
