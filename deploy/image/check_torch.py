"""Exits with a reason where the installed PyTorch is not of the variant that the image is to be."""

import sys

import torch

wanted, cuda = sys.argv[1], torch.version.cuda
if wanted not in ("cpu", "cuda"):
    sys.exit(f"VARIANT is {wanted!r}: give cpu or cuda")
if wanted == "cuda" and cuda is None:
    sys.exit("VARIANT is cuda, but only the CPU build of PyTorch was found: empty deploy/wheels, or give a TORCH_INDEX")
if wanted == "cpu" and cuda is not None:
    print(
        f"VARIANT is cpu, but PyTorch's CUDA {cuda} build was found, so that the image takes gigabytes more: "
        "give the index of its CPU wheels as TORCH_INDEX, or a wheel in deploy/wheels",
        file=sys.stderr,
    )
