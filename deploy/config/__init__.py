"""The configuration of a run: schema, YAML files, command-line flags, and the generated reference pages."""
