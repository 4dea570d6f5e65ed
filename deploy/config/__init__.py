"""The configuration of a run: schema, YAML files, command-line flags, and its reference page."""
