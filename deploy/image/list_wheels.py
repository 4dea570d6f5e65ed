"""Print a page of links to the wheels in a folder, with their hashes.

Among several allowed files, pip prefers one whose hash is in the link.
"""

import sys
from hashlib import sha256
from pathlib import Path

for wheel in sorted(Path(sys.argv[1]).glob("*.whl")):
    print(f'<a href="{wheel.absolute().as_uri()}#sha256={sha256(wheel.read_bytes()).hexdigest()}">{wheel.name}</a>')
