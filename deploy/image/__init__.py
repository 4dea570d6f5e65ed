"""Scripts for building the container image (deploy/Dockerfile)."""
