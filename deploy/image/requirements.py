"""Print the dependencies of the image: those of the package without RLlib, which is large and not used by services."""

import sys
import tomllib
from pathlib import Path

for line in tomllib.loads(Path(sys.argv[1]).read_text())["project"]["dependencies"]:
    print(line.replace("ray[default,rllib]", "ray[default]"))
