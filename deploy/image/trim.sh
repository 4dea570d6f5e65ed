#!/bin/sh
# Removes unused files from a virtual environment: tests, headers, static libraries, Ray's Java and C++ sides, pip.
set -eu
packages=$(echo "$1"/lib/python3*/site-packages)
rm -rf "$packages"/torch/include "$packages"/torch/share "$packages"/torch/test "$packages"/torch/lib/*.a \
    "$packages"/ray/jars "$packages"/ray/cpp "$packages"/ray/rllib "$packages"/tensorboard_data_server/bin
find "$packages"/torch/bin -type f ! -name torch_shm_manager -delete
find "$packages" -depth -type d \( -name tests -o -name __pycache__ \) -exec rm -rf {} +
"$1"/bin/python -m pip uninstall -qq -y hatch-vcs hatchling setuptools-scm pip
# Round times to seconds: pulled layers keep no finer times, and Numba's compiled code is looked up by the times of its sources.
find "$packages"/actors -name '*.py' -exec touch -d '2020-01-01' {} +
