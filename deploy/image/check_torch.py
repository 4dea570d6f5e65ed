"""Exit with an error if the installed PyTorch is not the requested variant, cpu or cuda.

With --adds-cuda, exit with 0 if it is a build that needs NVIDIA's CUDA packages.
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
    sys.exit("VARIANT is cuda, but only the CPU build of PyTorch was found: empty deploy/wheels, or set TORCH_INDEX")
if wanted == "cpu" and cuda is not None:
    print(
        f"VARIANT is cpu, but PyTorch's CUDA {cuda} build was found, which makes the image gigabytes larger: "
        "set TORCH_INDEX to an index of CPU wheels, or put a wheel into deploy/wheels",
        file=sys.stderr,
    )
