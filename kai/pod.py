"""Decodes the fields of a pod's JSON that KAI and kaishare use.

Typed decoding (msgspec) is faster than building the whole document, and its errors name the path of a wrong
field. The decoded pod is never written back, so fields of newer API servers are not lost. Null and absent
maps are empty, as in Go. Every other wrong type raises `MalformedPod`; callers must not decide about such a
pod.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import chain
from typing import Any

import msgspec
from msgspec import Raw, Struct

from kai import keys
from kai.command_lines import LONGEST_COMMAND_LINE, first_words
from kai.gpu_resources import NVIDIA_PREFIX, is_nothing, may_be_accelerator, names_device_class, names_gpu
from kai.share import Share

Quantity = str | float
"""A quantity in JSON. API servers write strings, manifests may have numbers. An integer is decoded as a
float; decoding an integer of thousands of digits would take quadratic time."""
_NOTHING = Raw(b"")
_EMPTY: Mapping[str, Any] = {}


class MalformedPod(ValueError):
    """A document that is not a valid v1 Pod; the message names the field and the expected type."""


class Resources(Struct, gc=False):
    """`resources` of a container."""

    limits: dict[str, Quantity] | None = None
    requests: dict[str, Quantity] | None = None
    claims: Raw = _NOTHING


class Container(Struct, gc=False):
    """One container: its name, resources, environment and command line."""

    name: str | None = None
    image: str | None = None
    restartPolicy: str | None = None
    resources: Resources | None = None
    env: Raw = _NOTHING
    envFrom: Raw = _NOTHING
    command: Raw = _NOTHING
    args: Raw = _NOTHING

    @property
    def is_sidecar(self) -> bool:
        """Whether this init container keeps running beside the regular containers (KEP-753)."""
        return self.restartPolicy == "Always"

    @property
    def limits(self) -> Mapping[str, Quantity]:
        """`resources.limits`; empty if there are none."""
        return (self.resources.limits if self.resources else None) or _EMPTY

    @property
    def requests(self) -> Mapping[str, Quantity]:
        """`resources.requests`; empty if there are none."""
        return (self.resources.requests if self.resources else None) or _EMPTY

    def asks(self, resource: str) -> Quantity | None:
        """Return the requested amount of an extended resource: its limit, else its request, else None."""
        resources = self.resources
        if resources is None:
            return None
        if resources.limits and resource in resources.limits:
            return resources.limits[resource]
        return resources.requests.get(resource) if resources.requests else None

    @property
    def amounts(self) -> Iterator[tuple[str, Quantity]]:
        """The requested amounts of extended resources: limits, and requests of what has no limit."""
        limits = self.limits
        yield from limits.items()
        yield from ((name, amount) for name, amount in self.requests.items() if name not in limits)

    @property
    def variables(self) -> Sequence[Any]:
        """`env`, decoded at each access; empty if the value is not a list or is nested too deep to decode."""
        return _list(self.env)

    @property
    def variable_values(self) -> dict[str, str]:
        """The environment by name; a reference is empty. The last of one name counts, as for the kubelet."""
        return {
            entry["name"]: value if isinstance(value := entry.get("value"), str) else ""
            for entry in self.variables
            if isinstance(entry, dict) and isinstance(entry.get("name"), str)
        }

    @property
    def has_unseen_variables(self) -> bool:
        """Whether variables come from ConfigMaps or Secrets as a whole, so that their names are not known."""
        return _has_items(self.envFrom)

    def config_map_names(self, variable: str) -> Iterator[str]:
        """Yield the names of the ConfigMaps that an environment variable of the container refers to."""
        if variable.encode() not in bytes(self.env):
            return
        for entry in self.variables:
            if isinstance(entry, dict) and entry.get("name") == variable:
                name: Any = entry
                for key in ("valueFrom", "configMapKeyRef", "name"):
                    name = name.get(key) if isinstance(name, dict) else None
                if isinstance(name, str):
                    yield name

    @property
    def has_command(self) -> bool:
        """Whether the container sets `command`; if not, the image's entry point runs."""
        return bool(first_words(bytes(self.command), 0))

    @property
    def command_line(self) -> list[str]:
        """The words of `command`, then of `args`, up to the word that passes `LONGEST_COMMAND_LINE`."""
        words = first_words(bytes(self.command))
        return words + first_words(bytes(self.args), LONGEST_COMMAND_LINE - sum(map(len, words)) - len(words))


class Owner(Struct, gc=False):
    """One of `metadata.ownerReferences`."""

    apiVersion: str | None = None
    kind: str | None = None
    name: str | None = None

    @property
    def group(self) -> str:
        """API group of the owner's kind; empty for the core group (`v1` or `/v1`)."""
        return (self.apiVersion or "").rpartition("/")[0]

    @property
    def is_daemon_set(self) -> bool:
        """Whether the owner is a DaemonSet of the API group `apps`."""
        return self.kind == "DaemonSet" and self.group == "apps"


class Metadata(Struct):
    """`metadata` of a pod; the fields have their JSON names.

    All fields may be missing or null, as in a pod that a user creates and the API server has not checked yet.
    """

    name: str | None = None
    generateName: str | None = None
    namespace: str | None = None
    labels: dict[str, str | None] | None = None
    annotations: dict[str, str | None] | None = None
    ownerReferences: list[Owner] | None = None


class Spec(Struct):
    """`spec` of a pod; the fields have their JSON names."""

    containers: list[Container] | None = None
    initContainers: list[Container] | None = None
    schedulerName: str | None = None
    nodeName: str | None = None
    priorityClassName: str | None = None
    runtimeClassName: str | None = None
    nodeSelector: dict[str, str | None] | None = None
    affinity: Raw = _NOTHING
    tolerations: list[dict[str, Any]] | None = None
    resourceClaims: Raw = _NOTHING


class PodDocument(Struct):
    """A v1 Pod. A field is None where the document has null or lacks the field."""

    spec: Spec
    metadata: Metadata | None = None


class ContainerFacts(Struct, frozen=True):
    """GPU resources and resource claims of all containers of a pod together."""

    gpu_resources: Mapping[str, None]
    """Names of the GPU resources that any container requests, in order; an amount of 0 requests nothing."""
    accelerator: str | None
    """The first other resource that a container requests and that may be an accelerator."""
    names_whole_gpus: bool
    """Whether any container has `nvidia.com/gpu` in its resources, also with an amount of 0."""
    use_claims: bool  # whether any container uses a resource claim

    @classmethod
    def of(cls, containers: Sequence[Container]) -> "ContainerFacts":
        """Collect the facts in one pass over the containers."""
        gpu_resources: dict[str, None] = {}
        accelerator = None
        names_whole_gpus = use_claims = False
        for container in containers:
            resources = container.resources
            if resources is None:
                continue
            use_claims = use_claims or _has_items(resources.claims)
            for name, amount in container.amounts:
                if "/" not in name:
                    continue
                is_whole = name == keys.GPU_RESOURCE
                names_whole_gpus = names_whole_gpus or is_whole
                if name in gpu_resources or is_nothing(amount):
                    continue
                if names_gpu(name):
                    gpu_resources[name] = None
                if accelerator is None and not is_whole and may_be_accelerator(name):
                    accelerator = name
        return cls(gpu_resources, accelerator, names_whole_gpus, use_claims)


class _Unread(Enum):
    UNREAD = 0


class PodView:
    """A decoded pod with defaults in place of null and absent fields."""

    __slots__ = (
        "_share",
        "all_containers",
        "annotations",
        "container_facts",
        "containers",
        "document",
        "generate_name",
        "gpu_resources",
        "init_containers",
        "labels",
        "name",
        "namespace",
        "node_name",
        "nvidia_annotations",
        "owners",
        "priority_class",
        "scheduler_name",
        "spec",
    )

    def __init__(self, document: PodDocument, container_facts: "ContainerFacts | None" = None) -> None:
        """Wrap a document. `container_facts` are those of another pod with the same containers."""
        self.document = document
        metadata = document.metadata or Metadata()
        self.spec = spec = document.spec
        self.name = metadata.name or ""
        """Empty where the API server generates the name from `generate_name`."""
        self.generate_name = metadata.generateName or ""
        self.namespace = metadata.namespace or ""
        self.scheduler_name = spec.schedulerName or ""
        self.node_name = spec.nodeName or ""
        self.priority_class = spec.priorityClassName or ""
        self.labels = _strings(metadata.labels)
        self.annotations = _strings(metadata.annotations)
        self.owners: Sequence[Owner] = metadata.ownerReferences or ()
        self.containers: Sequence[Container] = spec.containers or ()
        self.init_containers: Sequence[Container] = spec.initContainers or ()
        self.all_containers: list[Container] = [*self.containers, *self.init_containers]
        """Regular containers, then init containers: KAI's order (`getFirstGPULimit`)."""
        self.container_facts = container_facts or ContainerFacts.of(self.all_containers)
        """GPU resources and claims of the containers."""
        self.gpu_resources = self.container_facts.gpu_resources
        """Names of the GPU resources that any container requests; an amount of 0 requests nothing."""
        self.nvidia_annotations = [key for key in self.annotations if key.startswith(NVIDIA_PREFIX)]
        """Keys of the annotations with the prefix `nvidia.com/`."""
        self._share: Share | str | _Unread | None = _Unread.UNREAD  # the share, or the message of the error

    @property
    def is_of_daemon_set(self) -> bool:
        """Whether a DaemonSet owns the pod."""
        return any(owner.is_daemon_set for owner in self.owners)

    @property
    def owner_name(self) -> str:
        """The first owner's name; empty for a pod without owners."""
        return (self.owners[0].name or "") if self.owners else ""

    @property
    def share_request(self) -> Share | None:
        """The share that the annotations request, read once; raises as `Share.from_annotations`."""
        if self._share is _Unread.UNREAD:
            try:
                self._share = Share.from_annotations(self.annotations)
            except ValueError as error:
                self._share = str(error)
        if isinstance(self._share, str):
            raise ValueError(self._share)
        return self._share

    @property
    def uses_mig(self) -> bool:
        """Whether a container or the legacy annotation requests a MIG device."""
        annotations = (key for key in self.nvidia_annotations if self.annotations[key] != "0")
        return any(name.startswith(keys.MIG_PREFIX) for name in chain(self.gpu_resources, annotations))

    @property
    def uses_claims(self) -> bool:
        """Whether the pod has resource claims (DRA), including those that extended resources imply."""
        return (
            self.container_facts.use_claims
            or _has_items(self.spec.resourceClaims)
            or any(map(names_device_class, self.gpu_resources))
        )

    @property
    def named_claim(self) -> str | None:
        """The first ResourceClaim that the pod names itself, without a template; None if there is none."""
        entries = _list(self.spec.resourceClaims) if _has_items(self.spec.resourceClaims) else ()
        names = (entry.get("resourceClaimName") for entry in entries if isinstance(entry, dict))
        return next((name for name in names if name and isinstance(name, str)), None)


_decoder = msgspec.json.Decoder(PodDocument)


def decode_pod(document: bytes | Raw) -> PodView:
    """Decode a pod from JSON; raises as `decode_document`."""
    return PodView(decode_document(document))


def decode_document(document: bytes | Raw) -> PodDocument:
    """Decode a pod from JSON; MalformedPod if it is not JSON, too deep, or has a field of the wrong type."""
    try:
        return _decoder.decode(document)
    except msgspec.ValidationError as error:
        raise MalformedPod(explain_shape(error, "pod")) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedPod(f"the pod is not JSON: {error}") from None
    except RecursionError:
        raise MalformedPod("the pod is nested too deep") from None


def gpu_groups(labels: Mapping[str, str]) -> Iterator[str]:
    """Yield the GPU groups that a pod's labels name, in the order of the labels."""
    for key, value in labels.items():
        if key == keys.GPU_GROUP:
            yield value
        elif key.startswith(keys.GPU_GROUP_PREFIX):
            yield key.removeprefix(keys.GPU_GROUP_PREFIX)


def explain_shape(error: msgspec.ValidationError, whole: str) -> str:
    """Return msgspec's message with the path first: `spec.containers: expected array, got object`."""
    message, _, place = str(error).partition(" - at `")
    path = place.removesuffix("`").removeprefix("key in ").removeprefix("$").removeprefix(".") or whole
    return f"{path}: {message[:1].lower()}{message[1:].replace('`', '')}"


def _strings(texts: dict[str, str | None] | None) -> Mapping[str, str]:
    if not texts:
        return _EMPTY
    if None in texts.values():  # Go decodes null in a map of strings as ""
        return {key: text or "" for key, text in texts.items()}
    return texts  # type: ignore[return-value]  # no value is None


def _list(raw: Raw) -> list[Any]:
    try:
        decoded = msgspec.json.decode(raw) if bytes(raw) else None
    except (RecursionError, UnicodeDecodeError):  # the pod's decoder skips strings unchecked
        return []
    return decoded if isinstance(decoded, list) else []


def _has_items(raw: Raw) -> bool:
    return raw is not _NOTHING and bytes(raw) not in (b"null", b"[]")
