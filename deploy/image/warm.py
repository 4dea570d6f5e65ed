"""Compile Python bytecode and Numba functions while the image is built, so that containers start faster."""

import importlib

from ray.dashboard.utils import DashboardAgentModule, DashboardHeadModule, get_all_modules

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
KERNELS = (
    "actors.env.channels.compile",
    "actors.env.seed_fleet",
    "actors.policy.kernels.compile",
    "actors.policy.gradients.compile",
    "learner.kernels.compile",
)

for module in MODULES:
    importlib.import_module(module)
for kind in (DashboardAgentModule, DashboardHeadModule):  # Ray waits only 30 s for them at start
    get_all_modules(kind)
for name in KERNELS:
    importlib.import_module(name).compile_kernels()
