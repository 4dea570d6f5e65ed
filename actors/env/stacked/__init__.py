"""The torch backend: the networks of many environments as stacked tensors `[E, ...]`, trained and evaluated together.

Hosts of different sizes are padded to one shape. Which seeds take part in an epoch is data: the seeds of one blueprint
are rows of one bank, gathered for an epoch and scattered back after it. Read `networks.py` (`TorchNetworks`, the
`FleetNetworks` of this backend), `epoch.py` (one epoch of training), `evaluation.py` (validation and ablations); they
rest on `parameters.py`, `slot_plan.py`, `column_group.py`, `param_bank.py` and `layout.py`.
"""
