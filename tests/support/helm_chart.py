"""Renders the chart with the real helm."""

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support import yaml_text

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "kaishare"
NAMESPACE = "kaishare"
OLDEST_KUBERNETES = "1.30.0"
EVERY_RIGHT: dict[str, Any] = {
    "agent": {"eviction": {"mode": "on"}, "gpuSharingMode": "HamiCore", "resourceClaims": True},
    "authentication": {"enabled": True},
}
"""Values with which the chart grants all optional rights."""
EVERYTHING: dict[str, Any] = {
    **EVERY_RIGHT, "monitors": {"enabled": True, "tokenSecret": {"name": "prometheus-token"}},
    "alerts": {"enabled": True}, "dashboard": {"enabled": True}, "guard": {"enabled": True, "action": "audit"},
}  # fmt: skip
"""Values that enable all parts of the chart."""

Object = dict[str, Any]


def helm_program() -> Path:
    """Return the path of helm; skip the test without it."""
    program = Path(os.environ.get("KUBEBUILDER_ASSETS") or "/nonexistent") / "helm"
    if not program.is_file():
        pytest.skip("needs helm in KUBEBUILDER_ASSETS (see CONTRIBUTING.md)")
    return program


def helm(*arguments: str, kubeconfig: Path | None = None) -> "subprocess.CompletedProcess[str]":
    home = dict.fromkeys(("HELM_CONFIG_HOME", "HELM_DATA_HOME", "HELM_CACHE_HOME"), "/nonexistent/helm")
    environment = {**os.environ, **home, "KUBECONFIG": str(kubeconfig or "/nonexistent/kubeconfig")}
    return subprocess.run(
        [str(helm_program()), *arguments], capture_output=True, text=True, timeout=60, check=False, env=environment,
    )  # fmt: skip


def options(values: dict[str, Any]) -> list[str]:
    """Return values as options: each top-level key as JSON."""
    return [
        option for key, value in values.items() for option in ("--set-json", f"{key}={json.dumps(value)}")
    ]


@cache
def _rendered(values: str) -> str:
    done = helm(
        "template", "kaishare", str(CHART), "--namespace", NAMESPACE, "--kube-version", OLDEST_KUBERNETES,
        *options(json.loads(values)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


@cache
def _objects(text: str) -> str:
    return json.dumps([item for item in yaml_text.load_all(text) if item is not None])


def rendered_text(values: dict[str, Any] | None = None) -> str:
    return _rendered(json.dumps(values or {}, sort_keys=True))


def rendered(values: dict[str, Any] | None = None, *, tests: bool = False) -> list[Object]:
    """Return the chart's objects; hooks only on request."""
    objects: list[Object] = json.loads(_objects(rendered_text(values)))
    return [
        item for item in objects if tests or "helm.sh/hook" not in item["metadata"].get("annotations", {})
    ]


def find_object(objects: list[Object], kind: str, name: str) -> Object:
    (item,) = (item for item in objects if (item["kind"], item["metadata"]["name"]) == (kind, name))
    return item


def kinds(objects: list[Object]) -> set[tuple[str, str]]:
    return {(item["kind"], item["metadata"]["name"]) for item in objects}


def pod_of(objects: list[Object], kind: str, name: str) -> Object:
    template: Object = find_object(objects, kind, name)["spec"]["template"]
    return template


def webhook_pod(values: dict[str, Any] | None = None) -> Object:
    return pod_of(rendered(values), "Deployment", "kaishare-webhook")


def agent_pod(values: dict[str, Any] | None = None) -> Object:
    return pod_of(rendered(values), "DaemonSet", "kaishare-agent")


def container(pod: Object) -> Object:
    (only,) = pod["spec"]["containers"]
    assert isinstance(only, dict)
    return only
