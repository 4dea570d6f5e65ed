"""Pin the images of docker-compose.yml: write a line NAME=IMAGE@DIGEST into .env for each (`make pin`).

Each image is pulled by the version in docker-compose.yml, and its digest is read from Docker.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

NAMED = re.compile(r"\$\{(TAMIYO_\w+_IMAGE):-([^}]+)\}")


def images(text: str) -> dict[str, str]:
    """Return the image of each variable that docker-compose.yml reads."""
    return dict(NAMED.findall(text))


def digest(image: str) -> str:
    """Pull an image and return IMAGE@DIGEST."""
    subprocess.run(["docker", "pull", "--quiet", image], check=True, stdout=subprocess.DEVNULL)
    shown = ["docker", "image", "inspect", "--format", "{{range .RepoDigests}}{{println .}}{{end}}", image]
    found = subprocess.run(shown, check=True, stdout=subprocess.PIPE, text=True).stdout
    own = re.findall(rf"^{re.escape(image.rpartition(':')[0])}(@sha256:[0-9a-f]{{64}})$", found, re.MULTILINE)
    if not own:
        sys.exit(f"Docker has no digest for {image}: it was not pulled from a registry")
    return image + str(own[0])


def main(compose_file: Path, settings: Path) -> None:
    """Update the pinned images in `settings`; other lines are kept."""
    pinned = {name: digest(image) for name, image in images(compose_file.read_text()).items()}
    before = settings.read_text().splitlines() if settings.exists() else []
    lines = [line for line in before if line.partition("=")[0] not in pinned]
    lines += [f"{name}={image}" for name, image in pinned.items()]
    settings.write_text("".join(f"{line}\n" for line in lines))
    print("\n".join(f"{name}={image}" for name, image in pinned.items()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
