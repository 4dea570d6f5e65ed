"""The Kubernetes manifests: every kind against its schema, and against each other.

Core kinds are held to the strict schemas of Kubernetes that the package kubernetes-validate brings; RayCluster to
raycluster_schema.json beside this file, its pods to the core schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from deploy.commands.serve_flags import serve_flags

FOLDER = Path(__file__).parents[3] / "deploy" / "kuberay"
KUBERNETES = "1.31"
RAY_CLUSTER = json.loads(Path(__file__).with_name("raycluster_schema.json").read_text())
Manifest = dict[str, Any]


def manifests() -> list[Manifest]:
    return [m for path in sorted(FOLDER.glob("*.yaml")) for m in yaml.safe_load_all(path.read_text())]


def kind(name: str) -> list[Manifest]:
    return [m for m in manifests() if m["kind"] == name]


def templates(manifest: Manifest) -> Iterator[Manifest]:
    if manifest["kind"] == "RayCluster":
        spec = manifest["spec"]
        yield from (group["template"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]))
    elif manifest["kind"] == "Deployment":
        yield manifest["spec"]["template"]


def check(manifest: Manifest) -> None:
    if manifest["kind"] != "RayCluster":
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
        return
    jsonschema.validate(manifest, RAY_CLUSTER)
    options = manifest["spec"]["autoscalerOptions"]
    beside = {"name": "autoscaler", "image": "x"} | {k: options[k] for k in ("resources", "env") if k in options}
    password = manifest["spec"]["gcsFaultToleranceOptions"]["redisPassword"]
    beside["env"] = [*beside.get("env", []), {"name": "PASSWORD"} | password]
    for template in templates(manifest):
        spec = template["spec"] | {"containers": [*template["spec"]["containers"], beside]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": template.get("metadata", {}), "spec": spec}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_every_manifest_fits_its_schema() -> None:
    assert {m["kind"] for m in manifests()} >= {
        "RayCluster", "Deployment", "Service", "NetworkPolicy", "Secret", "PersistentVolumeClaim",
    }  # fmt: skip
    for manifest in manifests():
        check(manifest)


def secrets_used(node: Any) -> Iterator[tuple[str, str]]:
    """(name, key) of every reference to a secret."""
    if isinstance(node, dict) and "secretKeyRef" in node:
        yield node["secretKeyRef"]["name"], node["secretKeyRef"]["key"]
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from secrets_used(child)


def test_every_reference_has_a_target() -> None:
    secrets = {s["metadata"]["name"]: set(s["stringData"]) for s in kind("Secret")}
    assert all(value == "" for s in kind("Secret") for value in s["stringData"].values())
    used = list(secrets_used(manifests()))
    used.append((kind("RayCluster")[0]["spec"]["authOptions"]["secretName"], "auth_token"))
    assert len(used) > 3
    assert not [(name, key) for name, key in used if key not in secrets[name]]
    claims = {c["metadata"]["name"] for c in kind("PersistentVolumeClaim")}
    for manifest in manifests():
        for spec in (template["spec"] for template in templates(manifest)):
            mounted = {mount["name"] for container in spec["containers"] for mount in container["volumeMounts"]}
            assert mounted <= {volume["name"] for volume in spec["volumes"]}
            for volume in spec["volumes"]:
                assert volume.get("persistentVolumeClaim", {"claimName": "tamiyo-runs"})["claimName"] in claims
                assert volume.get("secret", {"secretName": "tamiyo-policy"})["secretName"] in secrets


def test_each_pod_has_only_the_password_of_its_own_user() -> None:
    (cluster,), (policy,) = kind("RayCluster"), kind("Deployment")
    head, *workers = templates(cluster)
    assert {name for name, _ in secrets_used(head)} == {"tamiyo-redis-learner", "tamiyo-redis-actor"}
    assert [list(secrets_used(worker)) for worker in workers] == [[], []]
    assert {name for name, _ in secrets_used(policy)} == {"tamiyo-redis-reader"}
    (container,) = policy["spec"]["template"]["spec"]["containers"]
    assert "--redis=redis://reader@redis:6379/0" in container["args"]
    users = {line.split()[1] for line in (FOLDER.parent / "redis" / "users.acl").read_text().splitlines()}
    assert {"learner", "actor", "reader"} <= users


def test_every_pod_is_under_a_network_policy_and_nothing_is_privileged() -> None:
    selectors = [p["spec"]["podSelector"]["matchLabels"] for p in kind("NetworkPolicy")]
    found = [t for m in manifests() for t in templates(m)]
    assert len(found) == 4
    for template in found:
        labels = template["metadata"]["labels"]
        assert sum(selector.items() <= labels.items() for selector in selectors) == 1
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True
        for container in template["spec"]["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert set(container["resources"]) == {"requests", "limits"}
    for policy in kind("NetworkPolicy"):
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        assert all(rule.get("from") for rule in policy["spec"]["ingress"]), "an open door"


def test_the_policy_server_uses_existing_flags(tmp_path: Path) -> None:
    (deployment,) = kind("Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["tamiyo", "serve"]
    (tmp_path / "tokens").write_text("t\n")
    flags = serve_flags([a.replace("/run/tamiyo", str(tmp_path)) for a in container["args"]])
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert flags.listen == f"0.0.0.0:{ports['grpc']}"
    assert flags.metrics_port == ports["metrics"]
    assert not flags.insecure
    (service,) = kind("Service")
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
