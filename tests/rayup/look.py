"""What tests/rayup/run.sh looks at: `nodes [ADDRESS]` counts living machines, `keys URL` counts keys, `run FOLDER
ACTORS` fails unless a run is complete and at least so many actors played for it."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path


def nodes(address: str = "auto") -> int:
    import ray

    if address.startswith("ray://"):
        from deploy.launch.cluster import cluster

        with cluster(address):
            return sum(node["Alive"] for node in ray.nodes())
    ray.init(address=address, logging_level=logging.CRITICAL, log_to_driver=False)
    return sum(node["Alive"] for node in ray.nodes())


def keys(url: str) -> int:
    import redis

    return int(redis.Redis.from_url(url).dbsize())


def run(folder: str, actors: str) -> str:
    episodes = [json.loads(line) for line in (Path(folder) / "episodes.jsonl").read_text().splitlines()]
    ids = [e["episode_id"] for e in episodes]
    assert len(ids) == len(set(ids)), "an episode was trained on twice"
    played = {i.split("/")[1] for i in ids}
    assert len(played) >= int(actors), f"only {sorted(played)} played"
    assert (Path(folder) / "report.html").is_file(), "there is no report"
    return f"{len(ids)} episodes of {len(played)} actors"


if __name__ == "__main__":
    print({"nodes": nodes, "keys": keys, "run": run}[sys.argv[1]](*sys.argv[2:]))
