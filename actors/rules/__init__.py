"""Rules: policies that are written down instead of learned, each known by a name such as `fixed-column:double@3`."""
