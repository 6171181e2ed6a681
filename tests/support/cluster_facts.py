"""Clusters as the doctor reads them: a correct one, and functions that change it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from console.cluster.facts import Fact, Listing, Why
from console.cluster.webhook import UNKNOWN_SETTINGS, RunningSettings
from console.doctor.admission import AdmissionObjects
from console.doctor.cluster_state import ClusterFacts, DoctorOptions, Namespace
from console.render.policy_manifests import MUTATING, VALIDATING, objects_of
from kai.installation import Installation
from kai.queue import Queue
from kai.releases import Version
from kube.kinds import (
    MUTATING_BINDINGS,
    MUTATING_POLICIES,
    PRIORITY_CLASSES,
    VALIDATING_BINDINGS,
    VALIDATING_POLICIES,
    Container,
    PriorityClass,
)
from tests.support.registration import ServiceTarget, mutating_configuration, validating_configuration
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import PolicyMetadata
from webhook.registration.configuration_objects import WebhookConfiguration
from webhook.registration.configurations import CONFIGURATION_NAME
from webhook.settings.published_settings import PublishedSettings

SERVICE = ServiceTarget(namespace="kaishare", name="kaishare-webhook")
KAI_CONDITION = "object.spec.schedulerName == 'kai-scheduler'"


def configuration(document: dict[str, Any]) -> WebhookConfiguration:
    return msgspec.convert(document, WebhookConfiguration)


def mutating(name: str = CONFIGURATION_NAME, /, **changes: Any) -> WebhookConfiguration:
    made = mutating_configuration(SERVICE, name=name)
    made["webhooks"][0] |= changes
    return configuration(made)


def validating(**changes: Any) -> WebhookConfiguration:
    made = validating_configuration(SERVICE)
    made["webhooks"][0] |= changes
    return configuration(made)


def of_kai(
    name: str = "mutating-kai-admission", condition: str = KAI_CONDITION, **changes: Any
) -> WebhookConfiguration:
    hook = {
        "name": "admission.kai-scheduler.svc",
        "clientConfig": {"service": {"name": "admission", "namespace": "kai-scheduler",
            "path": "/mutate--v1-pod", "port": 443}},
        "matchConditions": [{"name": "scheduler-name-match", "expression": condition}] if condition else [],
        "reinvocationPolicy": "IfNeeded",
        "rules": [{"apiGroups": [""], "operations": ["CREATE"], "resources": ["pods"], "scope": "Namespaced"}],
        **changes,
    }  # fmt: skip
    return configuration({"metadata": {"name": name}, "webhooks": [hook]})


def other(name: str, **changes: Any) -> WebhookConfiguration:
    return of_kai(name, "", clientConfig={"url": "https://10.0.0.1/"}, **changes)


def namespace(name: str, annotations: Mapping[str, str] | None = None, **labels: str) -> Namespace:
    """Return a namespace, managed unless the queue is removed; `gpu_fraction="0.5"` is
    kaishare.dev/gpu-fraction."""
    own = {"kai.scheduler/queue": "team-a"} | {
        key if "/" in key else f"kaishare.dev/{key.replace('_', '-')}": value for key, value in labels.items()
    }
    own = {key: value for key, value in own.items() if value != "-"} | {"kubernetes.io/metadata.name": name}
    metadata = PolicyMetadata.select(own, annotations)
    return Namespace(name, own, metadata, metadata.policy(name))


def queue(name: str, parent: str = "department") -> Queue:
    return msgspec.convert({"metadata": {"name": name}, "spec": {"parentQueue": parent}}, Queue)


def installed(
    *args: str, program: str = "admission", tag: str = "v0.13.4", is_ready: bool = False
) -> Installation:
    container = Container(image=f"example.invalid/{program}:{tag}", args=list(args))
    return Installation.seen_in([(container, is_ready)])


def running(kai_version: str | None = "0.13.4", *, version: str = "0.1.0", **rules: Any) -> RunningSettings:
    """Return published settings; the rules are those of `DecisionSettings`."""
    release = Version.parse(kai_version) if kai_version else None
    published = PublishedSettings(
        version=version, policies="cluster", rules=DecisionSettings(kai_version=release, **rules)
    )
    return RunningSettings(published=published)


def whole(*items: Any) -> Listing[Any]:
    return Fact(items)


def part(*items: Any) -> Listing[Any]:
    return Fact(items, Why.PARTIAL, "not read whole")


UNREAD: Listing[Any] = Fact(why=Why.FORBIDDEN, line="you may not list them")
UNSERVED: Listing[Any] = Fact(why=Why.UNSERVED, line="not served")


def priority(name: str, value: int) -> PriorityClass:
    document = {"metadata": {"name": name}, "value": value}
    return msgspec.convert(document, PRIORITY_CLASSES.type)


_FIELDS: dict[str, tuple[str, Any]] = {
    "MutatingAdmissionPolicy": ("mutating", MUTATING_POLICIES),
    "MutatingAdmissionPolicyBinding": ("mutating_bindings", MUTATING_BINDINGS),
    "ValidatingAdmissionPolicy": ("validating", VALIDATING_POLICIES),
    "ValidatingAdmissionPolicyBinding": ("validating_bindings", VALIDATING_BINDINGS),
}


def admission(documents: Iterable[dict[str, Any]], unread: Iterable[str] = ()) -> AdmissionObjects:
    """Return admission policies and bindings as doctor reads them; `unread` are kinds without a list."""
    listed: dict[str, tuple[Any, ...]] = {field: () for field, _ in _FIELDS.values()}
    for document in documents:
        field, kind = _FIELDS[document["kind"]]
        listed[field] += (msgspec.convert(document, kind.type),)
    fields: dict[str, Any] = {field: Fact(items) for field, items in listed.items()}
    return AdmissionObjects(**fields | {_FIELDS[kind][0]: UNREAD for kind in unread})


def by_policies(
    *, rules: DecisionSettings | None = None, unread: Iterable[str] = (),
    variables: Mapping[str, str] | None = None, **selectors: dict[str, Any],
) -> AdmissionObjects:  # fmt: skip
    """Return kaishare's admission policies."""
    documents = [
        *objects_of(MUTATING, rules or DecisionSettings()),
        *objects_of(VALIDATING, rules or DecisionSettings()),
    ]
    names = {"mutate": ("MutatingAdmissionPolicy", "kaishare"), "validate_pods": ("ValidatingAdmissionPolicy", "kaishare-pods")}  # fmt: skip
    for document in documents:
        for variable in document["spec"].get("variables", ()):
            variable["expression"] = (variables or {}).get(variable["name"], variable["expression"])
        for policy, added in selectors.items():
            if names[policy] == (document["kind"], document["metadata"]["name"]):
                selector = document["spec"]["matchConstraints"]["namespaceSelector"]
                lines = [*selector["matchExpressions"], *added.get("matchExpressions", ())]
                selector |= added | {"matchExpressions": lines}
    return admission(documents, unread)


def alone(policies: AdmissionObjects, **changes: Any) -> ClusterFacts:
    """Return a cluster in which admission policies decide about pods, without kaishare's webhook."""
    return but(
        mutating=whole(of_kai()), validating=whole(), admission=policies,
        **{"running": UNKNOWN_SETTINGS, **changes},
    )  # fmt: skip


WELL = ClusterFacts(
    options=DoctorOptions(), mutating=whole(mutating(), of_kai()),
    validating=whole(validating(), of_kai("validating-kai-admission")), namespaces=whole(namespace("vision")),
    queues=whole(queue("department", ""), queue("team-a")), pod_groups=whole(),
    priorities=whole(priority("train", 50), priority("build-preemptible", 75)), limit_ranges=whole(),
    installation=installed("--gpu-sharing-enabled=true"), kai_namespace="kai-scheduler", running=running(),
)  # fmt: skip


def but(**changes: Any) -> ClusterFacts:
    options = {name: changes.pop(name) for name in ("name", "scope", "namespace") if name in changes}
    return replace(WELL, options=replace(WELL.options, **options), **changes)
