"""Hosts: the networks that are trained and grown. `host.py` is the interface; `make.py` chooses a host for a task."""
