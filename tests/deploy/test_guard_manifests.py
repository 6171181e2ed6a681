"""deploy/guard without a cluster: its lists are the code's, and its overlays differ only in their actions."""

import ast
import re
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from kai import gpu_resources, keys
from kai.own_labels import EXCLUDED_NAMESPACES
from kai.share import is_container_memory_key
from tests.support.guard import GUARD, QUEUES, rendered
from tests.support.pods import pod, view
from webhook.policy import checks
from webhook.policy.labels import MODE


def variable(name: str, *, policy: str = "keys") -> Any:
    """Return a constant of a policy; CEL's lists and strings read as Python's."""
    document = yaml.safe_load((GUARD / "policies" / f"{policy}.yaml").read_text())
    [expression] = [entry["expression"] for entry in document["spec"]["variables"] if entry["name"] == name]
    return ast.literal_eval(expression)


def named(folder: Path) -> dict[str, dict[str, Any]]:
    return {item["metadata"]["name"]: item for item in rendered(folder)}


def test_the_keys_that_only_kai_may_write_are_those_the_webhook_knows() -> None:
    labels, prefix, annotations = (
        variable(name) for name in ("kaiLabels", "kaiLabelPrefix", "kaiAnnotations")
    )
    assert {*labels, prefix, keys.VCLUSTER_PREFIX} == {keys.GPU_GROUP, *checks.RESERVED_PREFIXES}
    assert set(annotations) == checks._KAI_ANNOTATIONS
    for key in (*labels, prefix + "a"):
        assert list(checks.reserved_key_findings(view(pod(labels={key: "x"})))), key


def test_the_resources_that_name_a_gpu_are_those_the_webhook_knows() -> None:
    assert tuple(variable("otherDevices", policy="queues")) == gpu_resources.OTHER_DEVICES
    assert tuple(variable("gpuSuffixes", policy="queues")) == gpu_resources.GPU_SUFFIXES
    asks = (GUARD / "policies" / "queues.yaml").read_text()
    for prefix in (gpu_resources.NVIDIA_PREFIX, gpu_resources.DEVICE_CLASS_PREFIX):
        assert f"key.startsWith('{prefix}')" in asks


def test_the_protected_keys_are_queue_and_share() -> None:
    assert set(variable("fixedLabels")) == {keys.QUEUE_LABEL, keys.VCLUSTER_MANAGED_BY}
    share = {keys.GPU_FRACTION, keys.GPU_MEMORY, keys.NUM_DEVICES, keys.CONTAINER_NAME, keys.MPS}
    assert set(variable("fixedAnnotations")) == {*share, keys.SHARED_GPU_CONFIGMAP}
    assert is_container_memory_key(variable("fixedAnnotationPrefix") + "main.gpu-memory.request")


@pytest.mark.parametrize("policy", ["keys", "queues", "owners", "references"])
def test_the_code_knows_every_key_in_an_expression(policy: str) -> None:
    """Expressions name keys also outside of the constants above."""
    text = (GUARD / "policies" / f"{policy}.yaml").read_text()
    spec = yaml.safe_load(text)["spec"]
    known = {value for name, value in vars(keys).items() if name.isupper()}
    known |= {
        QUEUES,
        "vcluster.loft.sh/managed-annotations",
        variable("fixedAnnotationPrefix"),
        "nvidia.com/",
        "deviceclass.resource.kubernetes.io/",
        *variable("otherDevices", policy="queues"),
        *variable("gpuSuffixes", policy="queues"),
        "/",
        "/v1",
        "kubernetes.io/config.mirror",
    }
    expressions = [entry["expression"] for entry in [*spec.get("variables", []), *spec["validations"]]]
    named_keys = {
        word for text in expressions for word in text.split("'")[1::2] if "/" in word and " " not in word
    }
    assert named_keys <= known


def test_the_bindings_leave_the_webhooks_namespaces_alone() -> None:
    documents = named(GUARD)
    for policy in ("keys", "owners", "references"):
        name = f"kaishare-guard-{policy}-enforce"
        selector = documents[name]["spec"]["matchResources"]["namespaceSelector"]
        [excluded] = [
            expression["values"]
            for expression in selector["matchExpressions"]
            if expression["operator"] == "NotIn"
        ]
        assert set(excluded) == EXCLUDED_NAMESPACES
        assert selector["matchLabels"] == {MODE: "enforce"}


def test_every_policy_is_bound_and_fails_closed() -> None:
    documents = named(GUARD).values()
    policies = {
        document["metadata"]["name"]: document
        for document in documents
        if document["kind"].endswith("Policy")
    }
    bindings = [document for document in documents if document["kind"].endswith("Binding")]
    assert {document["spec"]["policyName"] for document in bindings} == set(policies)
    assert {document["spec"]["failurePolicy"] for document in policies.values()} == {"Fail"}
    assert len(policies) + len(bindings) == len(documents)


def test_the_guard_folder_equals_the_audit_overlay() -> None:
    assert named(GUARD) == named(GUARD / "audit")


@pytest.mark.parametrize(
    ("overlay", "actions"), [("audit", ["Audit"]), ("warn", ["Warn", "Audit"]), ("deny", ["Deny"])]
)
def test_overlays_differ_only_in_their_actions(overlay: str, actions: list[str]) -> None:
    documents, audit = named(GUARD / overlay), named(GUARD / "audit")
    for name, item in documents.items():
        if item["kind"].endswith("Binding"):
            assert item["spec"].pop("validationActions") == actions, name
            del audit[name]["spec"]["validationActions"]
    assert documents == audit


def test_kais_namespace_is_set_in_one_place(tmp_path: Path) -> None:
    folder = tmp_path / "guard"
    shutil.copytree(GUARD, folder)
    settings = folder / "policies" / "settings.yaml"
    text = settings.read_text()
    settings.write_text(text.replace("'kai-scheduler'", "'kai-elsewhere'"))
    assert named(GUARD) != named(folder)
    for item in rendered(folder):
        names = [value for value in strings(item.get("spec", {}).get("variables", [])) if "kai-" in value]
        assert not [value for value in names if "'kai-scheduler'" in value], item["metadata"]["name"]


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for entry in value.values() for text in strings(entry)]
    if isinstance(value, list):
        return [text for entry in value for text in strings(entry)]
    return [value] if isinstance(value, str) else []


DOCUMENT = Path(__file__).parents[2] / "docs" / "guard.md"


def test_the_document_names_every_policy_and_no_other() -> None:
    names = set(re.findall(r"`(kaishare-guard-[a-z-]+)`", DOCUMENT.read_text()))
    assert names == {name for name, item in named(GUARD).items() if item["kind"].endswith("Policy")}
    assert f"{QUEUES}=" in DOCUMENT.read_text()


def test_the_documents_overlay_leaves_one_namespace_out(tmp_path: Path) -> None:
    shutil.copytree(GUARD, tmp_path / "kaishare" / "deploy" / "guard")
    blocks = re.findall(r"(?:^(?:    .*)?\n)+", DOCUMENT.read_text(), re.MULTILINE)
    [overlay] = [textwrap.dedent(block) for block in blocks if "resources: [" in block]
    (tmp_path / "kustomization.yaml").write_text(overlay)
    overlaid, plain = named(tmp_path), named(GUARD / "deny")
    for name, item in plain.items():
        if name.endswith("-vclusters"):
            selector = overlaid[name]["spec"]["matchResources"].pop("namespaceSelector")
            assert selector["matchExpressions"][0]["values"] == ["vcluster-team-b"]
        assert overlaid[name] == item
