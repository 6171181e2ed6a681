"""Checks of the admission policies, where they decide about pods."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Struct

from console.doctor.api_reader import ApiReader, ListOutcome, ListSpec
from console.doctor.check_results import CheckResult, ok, problem, warning
from console.doctor.guard_objects import check_spec
from console.doctor.webhook_deployment import DeploymentOptions
from console.render.policy_manifests import MUTATING, NAME, VALIDATING, objects_of, settings
from kube.metadata import EVERYTHING, NAME_LABEL, LabelSelector, ObjectMeta
from service.text import listed, one_line
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import DEFAULT_MODES, Mode
from webhook.settings.decision_options import SETTINGS

_GROUP: Final = "admissionregistration.k8s.io"
_CHECK: Final = "admission policies"
_SETTINGS: Final = tuple(settings(DecisionSettings()))
"""The variables that hold settings."""
_KINDS: Final = {
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
RELEASE_PROPERTIES: Final = {
    "readsContainerName": "reads_container_name",
    "acceptsDottedNames": "accepts_dotted_names",
}
"""The variables that follow from KAI's release, each with the property of `kai.releases.Version`."""
_EFFECTS: Final = {
    "MutatingAdmissionPolicy": "no pod is changed",
    "MutatingAdmissionPolicyBinding": "no pod is changed",
    "ValidatingAdmissionPolicy": "pods or labels are not validated",
    "ValidatingAdmissionPolicyBinding": "pods or labels are not validated",
}
_REMEDY: Final = "upgrade the chart with webhook.kind=policy, or apply the output of kaishare render"


class PolicySelectors(Struct, frozen=True, rename="camel"):
    """The selectors of an admission policy, as those of a webhook."""

    name: str
    """Kind and name of the policy."""
    namespace_selector: LabelSelector = EVERYTHING
    object_selector: LabelSelector = EVERYTHING


class _Object(Struct, frozen=True):
    metadata: ObjectMeta
    spec: dict[str, Any]


_object = msgspec.json.Decoder(_Object).decode


def _read_object(item: bytes) -> _Object | None:
    """Decode a policy or binding; None for one without kaishare's name."""
    decoded = _object(item)
    if not decoded.metadata.name.startswith(NAME):
        return None
    check_spec(decoded.spec)
    return decoded


@dataclass(frozen=True, slots=True)
class InstalledPolicies:
    """The objects of kaishare's admission policies in a cluster, by kind and name."""

    specs: Mapping[tuple[str, str], Mapping[str, Any]]
    unread: frozenset[str] = frozenset()
    """The kinds of which not all objects could be read."""

    @property
    def settings(self) -> DeploymentOptions:
        """The settings in the variables of the MutatingAdmissionPolicy; KAI's release is not among them."""
        spec, texts = self.specs[_POLICY], self._texts
        modes = {mode.value: mode for mode in DEFAULT_MODES}
        rules = DecisionSettings(
            inject_shares=texts.get("injectShares") != "false",
            default_mode=modes.get(texts.get("defaultMode", ""), Mode.DEFAULT),
            default_priority_class=texts.get("defaultPriorityClass") or None,
            excluded_namespaces=_selector(spec).excluded_namespaces,
            by_admission_policies=True,
        )
        return DeploymentOptions(rules=rules, known=SETTINGS - {"kai_version"}, policies="cluster")

    @property
    def release_properties(self) -> Mapping[str, bool | None]:
        """The properties of KAI's release that the MutatingAdmissionPolicy assumes, by name.

        None: the variable is neither `true` nor `false`.
        """
        texts = self._texts
        values = {"true": True, "false": False}
        return {name: values.get(texts.get(key, "")) for key, name in RELEASE_PROPERTIES.items()}

    @property
    def mutate(self) -> PolicySelectors:
        """The selectors of the policy that changes pods."""
        return self._selectors(_POLICY)

    @property
    def validate_pods(self) -> PolicySelectors | None:
        """The selectors of the policy that validates pods; None if it is missing or could not be read."""
        return self._selectors(_VALIDATE_PODS) if _VALIDATE_PODS in self.specs else None

    @property
    def _texts(self) -> Mapping[str, str]:
        """The expressions of the MutatingAdmissionPolicy's variables, by name."""
        variables = self.specs[_POLICY].get("variables", ())
        return {each["name"]: each["expression"].strip("'") for each in variables}

    def _selectors(self, policy: tuple[str, str]) -> PolicySelectors:
        constraints = self.specs[policy].get("matchConstraints") or {}
        return msgspec.convert({**constraints, "name": " ".join(policy)}, PolicySelectors)


_POLICY: Final = ("MutatingAdmissionPolicy", NAME)
_VALIDATE_PODS: Final = ("ValidatingAdmissionPolicy", f"{NAME}-pods")


async def read_installed_policies(reader: ApiReader) -> InstalledPolicies | ListOutcome | None:
    """Read kaishare's admission policies.

    Returns:
        The policies; None without the MutatingAdmissionPolicy; `ListOutcome.UNREAD` if it is not known
        whether there is one.
    """
    specs: dict[tuple[str, str], Mapping[str, Any]] = {}
    unread = set()
    for kind, resource in _KINDS.items():
        spec = ListSpec(resource=resource, group=_GROUP, without="the admission policies were not checked")
        listing = await reader.list(spec, _read_object)
        if listing.outcome in (ListOutcome.PART, ListOutcome.UNREAD):
            unread.add(kind)
        specs |= {(kind, item.metadata.name): item.spec for item in listing.items}
        if _POLICY not in specs:
            return ListOutcome.UNREAD if unread else None
    return InstalledPolicies(specs, frozenset(unread))


def admission_policy_findings(installed: InstalledPolicies, *, is_alone: bool) -> Iterator[CheckResult]:
    """Yield findings about the existence and content of the policies and their bindings. Pure.

    Args:
        installed: the policies.
        is_alone: whether no webhook is installed beside them.
    """
    is_as_expected = True
    for item in [*objects_of(MUTATING, DecisionSettings()), *objects_of(VALIDATING, DecisionSettings())]:
        kind, name = item["kind"], item["metadata"]["name"]
        actual = installed.specs.get((kind, name))
        if actual is None:
            is_as_expected = False
            if kind in installed.unread:
                continue
            yield problem(_CHECK, f"{kind} {name} does not exist: {_EFFECTS[kind]}", _REMEDY)
            continue
        paths = _spec_differences(_without_excluded(actual), _without_excluded(item["spec"]), _SETTINGS)
        paths += _binding_differences(actual, item["spec"])
        if paths:
            is_as_expected = False
            yield problem(
                _CHECK, f"{kind} {name} differs from this release: {one_line(listed(paths))}", _REMEDY
            )
    if not is_alone:
        yield warning(
            _CHECK,
            "the webhook and admission policies both stand; the policies decide first",
            "finish the switch: upgrade the chart with webhook.kind=policy or webhook.kind=webhook",
        )
        return
    if is_as_expected:
        yield ok(_CHECK, "as expected; the API server decides about pods, and no webhook is installed")
    yield ok("order", "admission policies act before every webhook that changes pods")


def _binding_differences(actual: Mapping[str, Any], shipped: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields that a binding of the guard may change, and one of these policies may not."""
    if actual.get("validationActions") != shipped.get("validationActions"):
        yield "spec.validationActions"
    if (actual.get("matchResources") or {}).get("namespaceSelector"):
        yield "spec.matchResources.namespaceSelector"


def _selector(spec: Mapping[str, Any]) -> LabelSelector:
    """Return the namespaceSelector of a policy."""
    selector = (spec.get("matchConstraints") or {}).get("namespaceSelector") or {}
    return msgspec.convert(selector, LabelSelector)


def _without_excluded(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a spec whose namespaceSelector excludes no namespaces by name: those may be chosen."""
    if not _selector(spec).excluded_namespaces:
        return spec
    constraints = spec["matchConstraints"]
    selector = constraints["namespaceSelector"]
    kept = [
        line
        for line in selector["matchExpressions"]
        if (line["key"], line["operator"]) != (NAME_LABEL, "NotIn")
    ]
    selector = {**selector, "matchExpressions": kept}
    return {**spec, "matchConstraints": {**constraints, "namespaceSelector": selector}}


def _spec_differences(
    actual: Mapping[str, Any], shipped: Mapping[str, Any], parameters: Collection[str]
) -> list[str]:
    """Return the paths of the fields in which the specs of two admission policies or bindings differ.

    Args:
        actual: a spec in the cluster.
        shipped: the spec of this release.
        parameters: the variables that an administrator may set; their expressions do not count.
    """
    return list(_differences(_comparable(actual, parameters), _comparable(shipped, parameters), "spec"))


def _comparable(spec: Mapping[str, Any], parameters: Collection[str]) -> dict[str, Any]:
    """Return a spec with the API server's defaults, without what an administrator may set.

    The defaults are those of Kubernetes 1.30 to 1.36.
    """
    result = {"failurePolicy": "Fail", **spec}
    result.pop("validationActions", None)
    if "variables" in spec:
        result["variables"] = [
            {"name": variable["name"]} if variable["name"] in parameters else variable
            for variable in spec["variables"]
        ]
    result["matchConstraints"] = _with_defaults(spec.get("matchConstraints") or {})
    result["matchResources"] = _with_defaults(spec.get("matchResources") or {})
    result["matchResources"].pop("namespaceSelector")
    return result


def _with_defaults(match: Mapping[str, Any]) -> dict[str, Any]:
    result = {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}, **match}
    for field in ("resourceRules", "excludeResourceRules"):
        result[field] = [
            {
                "scope": "*",
                **{key: sorted(value) if isinstance(value, list) else value for key, value in rule.items()},
            }
            for rule in match.get(field) or ()
        ]
    return result


def _differences(actual: Any, shipped: Any, path: str) -> Iterator[str]:
    """Yield the paths of the smallest parts that differ."""
    if actual == shipped:
        return
    if isinstance(actual, dict) and isinstance(shipped, dict):
        for key in sorted(actual.keys() | shipped.keys()):
            if key in actual and key in shipped:
                yield from _differences(actual[key], shipped[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"
        return
    if isinstance(actual, list) and isinstance(shipped, list):
        actual_names, shipped_names = _by_name(actual), _by_name(shipped)
        if actual_names is not None and shipped_names is not None:
            for name in sorted(actual_names.keys() | shipped_names.keys()):
                if actual_names.get(name) != shipped_names.get(name):
                    yield f"{path}.{name}"
            return
        if len(actual) == len(shipped):
            for index, (actual_item, shipped_item) in enumerate(zip(actual, shipped, strict=True)):
                yield from _differences(actual_item, shipped_item, f"{path}[{index}]")
            return
    yield path


def _by_name(items: list[Any]) -> dict[str, Any] | None:
    """Return the items of a list by their names; None if they lack names, or share one.

    The API server accepts two variables of one name (seen on Kubernetes 1.30.14 and 1.36.3).
    """
    if not all(isinstance(item, dict) and isinstance(item.get("name"), str) for item in items):
        return None
    named = {item["name"]: item for item in items}
    return named if len(named) == len(items) else None
