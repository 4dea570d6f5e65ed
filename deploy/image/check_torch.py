"""Exits with a reason where the installed PyTorch is not of the variant that the image is to be.

With --adds-cuda: exits with 0 where it is a build that needs CUDA's packages.
"""

import sys
from importlib.metadata import requires

wanted = sys.argv[1]
if wanted == "--adds-cuda":
    sys.exit(not any(line.startswith(("nvidia-", "cuda-")) for line in requires("torch") or ()))
if wanted not in ("cpu", "cuda"):
    sys.exit(f"VARIANT is {wanted!r}: give cpu or cuda")

import torch  # noqa: E402

cuda = torch.version.cuda
if wanted == "cuda" and cuda is None:
    sys.exit("VARIANT is cuda, but only the CPU build of PyTorch was found: empty deploy/wheels, or give a TORCH_INDEX")
if wanted == "cpu" and cuda is not None:
    print(
        f"VARIANT is cpu, but PyTorch's CUDA {cuda} build was found, so that the image takes gigabytes more: "
        "give the index of its CPU wheels as TORCH_INDEX, or a wheel in deploy/wheels",
        file=sys.stderr,
    )
