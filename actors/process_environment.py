"""Environment variables of the processes of a run."""

from __future__ import annotations

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
"""Those of a process that sees no GPU."""


def process_environment(uses_gpu: bool) -> dict[str, str]:
    """Return those of a Ray process. Each numerical library has one thread.

    Ray shows a process the GPUs that it reserved, but hides none from one that reserved none, which would then take
    memory that was promised to others.
    """
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return threads if uses_gpu else threads | NO_GPU
