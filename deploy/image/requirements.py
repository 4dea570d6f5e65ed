"""Prints what the image installs: the package's dependencies, without RLlib, which is large and used by no service."""

import sys
import tomllib
from pathlib import Path

for line in tomllib.loads(Path(sys.argv[1]).read_text())["project"]["dependencies"]:
    print(line.replace("ray[default,rllib]", "ray[default]"))
