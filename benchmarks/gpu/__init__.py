"""Everything that needs a GPU, in one command: `python -m benchmarks.gpu`, or `make gpu`.

`steps.py` lists what runs, each step in a process of its own with a time limit; `packages.py` finds or installs what
the steps need; `runner.py` runs a step; `report.py` prints and writes what came out.
"""
