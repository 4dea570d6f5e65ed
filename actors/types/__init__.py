"""Data types shared by all packages: actions, spaces, episodes and published weights."""
