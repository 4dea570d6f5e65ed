"""The torch backend: many growing networks as one tensor program."""
