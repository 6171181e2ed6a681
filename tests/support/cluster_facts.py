"""Clusters as the doctor reads them: a correct one, and functions that change it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from console.doctor.admission_policies import InstalledPolicies
from console.doctor.api_reader import ListOutcome, ListResult
from console.doctor.check_results import CheckResult, State
from console.doctor.cluster_state import Cluster, Namespace, PriorityClass
from console.doctor.webhook_deployment import RunningSettings
from console.render.policy_manifests import MUTATING, VALIDATING, objects_of
from kai.installation import Installation, ProgramContainer, ProgramPod, ProgramSpec, ProgramStatus
from kai.queue import Queue
from kai.releases import Version
from kube.metadata import ObjectMeta
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import PolicyMetadata
from webhook.registration.configuration_objects import WebhookConfiguration
from webhook.registration.configurations import (
    CONFIGURATION_NAME,
    ServiceTarget,
    mutating_configuration,
    validating_configuration,
)
from webhook.settings.published_settings import PublishedSettings

SERVICE = ServiceTarget(namespace="kaishare", name="kaishare-webhook")
KAI_CONDITION = "object.spec.schedulerName == 'kai-scheduler'"


def configuration(document: dict[str, Any]) -> WebhookConfiguration:
    return msgspec.convert(document, WebhookConfiguration)


def mutating(name: str = CONFIGURATION_NAME, /, **changes: Any) -> WebhookConfiguration:
    """Return kaishare's mutating configuration with one webhook changed."""
    made = mutating_configuration(SERVICE, name=name)
    made["webhooks"][0] |= changes
    return configuration(made)


def validating(**changes: Any) -> WebhookConfiguration:
    """Return kaishare's validating configuration with the webhook for pods changed."""
    made = validating_configuration(SERVICE)
    made["webhooks"][0] |= changes
    return configuration(made)


def of_kai(
    name: str = "mutating-kai-admission", condition: str = KAI_CONDITION, **changes: Any
) -> WebhookConfiguration:
    """Return KAI's configuration as its operator writes it."""
    hook = {
        "name": "admission.kai-scheduler.svc",
        "clientConfig": {
            "service": {
                "name": "admission",
                "namespace": "kai-scheduler",
                "path": "/mutate--v1-pod",
                "port": 443,
            }
        },
        "matchConditions": [{"name": "scheduler-name-match", "expression": condition}] if condition else [],
        "reinvocationPolicy": "IfNeeded",
        "rules": [
            {"apiGroups": [""], "operations": ["CREATE"], "resources": ["pods"], "scope": "Namespaced"}
        ],
        **changes,
    }
    return configuration({"metadata": {"name": name}, "webhooks": [hook]})


def other(name: str, **changes: Any) -> WebhookConfiguration:
    """Return a configuration of another component."""
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
    container = ProgramContainer(image=f"example.invalid/{program}:{tag}", args=list(args))
    status = {"conditions": [{"type": "Ready", "status": "True"}]} if is_ready else {}
    pod = ProgramPod(spec=ProgramSpec(containers=[container]))
    return Installation.seen_in([msgspec.structs.replace(pod, status=msgspec.convert(status, ProgramStatus))])


def running(kai_version: str | None = "0.13.4", *, version: str = "0.1.0", **rules: Any) -> RunningSettings:
    """Return published settings; the rules are those of `DecisionSettings`."""
    release = Version.parse(kai_version) if kai_version else None
    published = PublishedSettings(
        version=version, policies="cluster", rules=DecisionSettings(kai_version=release, **rules)
    )
    return RunningSettings(published=published)


def whole(*items: Any) -> ListResult[Any]:
    return ListResult(items, ListOutcome.WHOLE)


def by_policies(
    *, rules: DecisionSettings | None = None, unread: Iterable[str] = (), **selectors: dict[str, Any]
) -> InstalledPolicies:
    """Return kaishare's admission policies.

    Args:
        rules: the settings; None for the defaults.
        unread: kinds that could not be listed.
        selectors: what is added to the namespaceSelector of the policy `mutate` or `validate_pods`; lines of
            matchExpressions are appended.
    """
    items = [
        *objects_of(MUTATING, rules or DecisionSettings()),
        *objects_of(VALIDATING, rules or DecisionSettings()),
    ]
    specs = {(item["kind"], item["metadata"]["name"]): item["spec"] for item in items}
    policies = {
        "mutate": ("MutatingAdmissionPolicy", "kaishare"),
        "validate_pods": ("ValidatingAdmissionPolicy", "kaishare-pods"),
    }
    for policy, added in selectors.items():
        selector = specs[policies[policy]]["matchConstraints"]["namespaceSelector"]
        selector |= added | {
            "matchExpressions": [*selector["matchExpressions"], *added.get("matchExpressions", ())]
        }
    return InstalledPolicies(
        {key: spec for key, spec in specs.items() if key[0] not in unread}, frozenset(unread)
    )


def alone(policies: InstalledPolicies, **changes: Any) -> Cluster:
    """Return a cluster in which admission policies decide about pods, without kaishare's webhook."""
    return but(
        mutating=whole(of_kai()),
        validating=whole(),
        policies=policies,
        running=RunningSettings(deployed=policies.settings),
        **changes,
    )


WELL = Cluster(
    name=CONFIGURATION_NAME,
    mutating=whole(mutating(), of_kai()),
    validating=whole(validating(), of_kai("validating-kai-admission")),
    namespaces=whole(namespace("vision")),
    queues=whole(queue("department", ""), queue("team-a")),
    pod_groups=whole(),
    priorities=whole(
        PriorityClass(ObjectMeta("train"), 50), PriorityClass(ObjectMeta("build-preemptible"), 75)
    ),
    installation=installed("--gpu-sharing-enabled=true"),
    kai_namespace="kai-scheduler",
    running=running(),
)


def but(**changes: Any) -> Cluster:
    return replace(WELL, **changes)


def result_lines(findings: Iterable[CheckResult], *states: State) -> list[str]:
    """Return the results that are problems, or in the given states."""
    wanted = states or (State.PROBLEM, State.WARNING)
    return [
        f"{finding.state}: {finding.check}: {finding.what}" for finding in findings if finding.state in wanted
    ]
