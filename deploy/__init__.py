"""Running it: the command line, the one-machine launch, the report and the cluster files."""
