"""Compile Python bytecode and Numba functions while the image is built, so that containers start faster."""

import importlib

from ray.dashboard.utils import DashboardAgentModule, DashboardHeadModule, get_all_modules

from deploy.launch import kernels

MODULES = (
    "deploy.commands.admin.health",
    "deploy.launch.processes",
    "deploy.commands.serve",
    "deploy.commands.admin.status",
    "grpc_health.v1.health_pb2_grpc",
    "ray.dashboard.agent",
    "ray.dashboard.dashboard",
    "ray.scripts.scripts",
    "torch.utils.tensorboard",
)
for module in MODULES:
    importlib.import_module(module)
for kind in (DashboardAgentModule, DashboardHeadModule):  # Ray waits only 30 s for them at start
    get_all_modules(kind)
for part in kernels.PACKAGES:
    kernels.compile_part(part)
