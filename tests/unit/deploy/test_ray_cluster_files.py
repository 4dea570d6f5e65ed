"""The Ray cluster files of deploy/, read by Ray's loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from tests.rayup.fill_in import fill_in

DEPLOY = Path(__file__).parents[3] / "deploy"
CLOUDS = ["ray-cluster.aws.yaml", "ray-cluster.gcp.yaml"]


def check(text: str) -> dict[str, Any]:
    prepared: dict[str, Any] = prepare_config(yaml.safe_load(text))
    validate_config(prepared)
    return prepared


@pytest.mark.parametrize("name", [*CLOUDS, "ray-cluster.local.yaml"])
def test_every_node_uses_the_token_and_gcs_uses_an_external_redis(name: str) -> None:
    config = check((DEPLOY / name).read_text())
    assert config["cluster_name"] == "tamiyo"
    # Nothing is left to Ray's defaults, which would install another Ray and open the dashboard to all.
    assert all("pip install -U" not in c for c in config["setup_commands"])
    assert "dashboard-host=0" not in yaml.safe_dump(config, width=10_000)
    options = " ".join(config["docker"].get("run_options", []))
    for role in ("head", "worker"):
        stop, start = config[f"{role}_start_ray_commands"]
        assert stop == "ray stop"
        assert "RAY_AUTH_MODE=token" in start + options
    token = [remote for remote, local in config["file_mounts"].items() if local == "~/.ray/auth_token"]
    assert token == (["/run/tamiyo/auth_token"] if options else ["~/.ray/auth_token"])
    assert not options or f"RAY_AUTH_TOKEN_PATH={token[0]}" in options
    start = config["head_start_ray_commands"][1]
    assert "RAY_REDIS_ADDRESS=" in start
    assert "--ray-client-server-port=10001" in start
    password = [remote for remote in config["file_mounts"] if remote.endswith("gcs_redis_password")]
    assert f"python -m deploy.launch.ray.ray_head {password[0]} --head " in " ".join(start.split())
    assert "redis-password" not in yaml.safe_dump(config, width=10_000)  # a command line is there for all to read


@pytest.mark.parametrize("name", CLOUDS)
def test_cloud_files_have_a_gpu_head_and_actor_machines_that_scale_from_zero(name: str) -> None:
    config = check((DEPLOY / name).read_text())
    types = config["available_node_types"]
    assert config["head_node_type"] == "head"
    scales = {kind: (own["min_workers"], own["max_workers"] > 0) for kind, own in types.items()}
    assert scales == {"head": (0, False), "cpu_actors": (0, True), "gpu_actors": (0, True)}
    assert config["max_workers"] == sum(t["max_workers"] for t in types.values())
    assert config["docker"]["image"]
    if "GPU" in types["head"]["resources"]:  # on AWS Ray asks the cloud
        assert types["head"]["resources"]["GPU"] == types["gpu_actors"]["resources"]["GPU"] == 1


def test_the_local_file_can_be_completed() -> None:
    text = (DEPLOY / "ray-cluster.local.yaml").read_text()
    prepared = check(fill_in(text, "10.0.0.1", "10.0.0.2", "/k", "10.0.0.1:6380"))
    node = prepared["available_node_types"]["local.cluster.node"]
    assert (node["min_workers"], node["max_workers"]) == (1, 1)
    assert "RAY_enable_autoscaler_v2=0" in prepared["head_start_ray_commands"][1]
