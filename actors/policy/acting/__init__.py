"""Acting with a network: in this process, or as an exported program."""
