"""Commands that set up and inspect deployments: secrets, checks, status, dashboards and dead letters."""
