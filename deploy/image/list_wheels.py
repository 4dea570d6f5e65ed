"""Prints a page of links to the wheels in a folder, with their hashes: of several files that are allowed, pip takes one
whose hash it knows beforehand before any other."""

import sys
from hashlib import sha256
from pathlib import Path

for wheel in sorted(Path(sys.argv[1]).glob("*.whl")):
    print(f'<a href="{wheel.absolute().as_uri()}#sha256={sha256(wheel.read_bytes()).hexdigest()}">{wheel.name}</a>')
