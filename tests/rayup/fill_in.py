"""deploy/ray-cluster.local.yaml with the addresses of a test in it: FILE HEAD WORKER KEY REDIS; prints YAML."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml


def fill_in(text: str, head: str, worker: str, key: str, redis: str) -> str:
    assert text.count("gcs-redis.example:6379") == 1
    config = yaml.safe_load(text.replace("gcs-redis.example:6379", redis))
    config["provider"] |= {"head_ip": head, "worker_ips": [worker]}
    config["auth"] = {"ssh_user": "root", "ssh_private_key": key}
    return yaml.safe_dump(config, width=10_000)


if __name__ == "__main__":
    print(fill_in(Path(sys.argv[1]).read_text(), *sys.argv[2:]))
