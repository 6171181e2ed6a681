"""A reader for pods as they travel: the JSON itself, and of it only what KAI and kaishare decide on.

Decoding is typed (msgspec), which is faster than building the whole document and says by path what is not
shaped as the API has it. The document is never written back from here, so nothing a newer API server added
can be lost. Null maps and absent maps read as empty, as they do in Go; any other wrong shape is
`MalformedPod`, and then nobody should decide anything about the pod.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec
from msgspec import Raw, Struct

from kai import keys
from kai.command_lines import LONGEST_COMMAND_LINE, first_words
from kai.gpu_resources import NVIDIA_PREFIX, names_device_class, names_gpu

Quantity = str | float
"""A quantity in JSON. API servers write strings; an integer, as manifests have it, is read as a float, since
reading an integer of thousands of digits takes quadratic time."""
_NOTHING = Raw(b"")
_EMPTY: Mapping[str, Any] = {}


class MalformedPod(ValueError):
    """The document is not shaped as a v1 Pod; the message names the field and what it should be."""


class Resources(Struct, gc=False):
    """`resources` of a container."""

    limits: dict[str, Quantity] | None = None
    requests: dict[str, Quantity] | None = None
    claims: Raw = _NOTHING


class _KeyRef(Struct, gc=False):
    name: str | None = None


class _ValueFrom(Struct, gc=False):
    configMapKeyRef: _KeyRef | None = None


class _Variable(Struct, gc=False):
    name: str | None = None
    valueFrom: _ValueFrom | None = None


_variables = msgspec.json.Decoder(list[_Variable] | None)


class Container(Struct, gc=False):
    """One container: its name and what it asks for."""

    name: str | None = None
    image: str | None = None
    restartPolicy: str | None = None
    resources: Resources | None = None
    env: Raw = _NOTHING
    command: Raw = _NOTHING
    args: Raw = _NOTHING

    @property
    def is_sidecar(self) -> bool:
        """Whether this init container goes on running beside the containers (KEP-753)."""
        return self.restartPolicy == "Always"

    @property
    def limits(self) -> Mapping[str, Quantity]:
        """Limits; empty if there are none."""
        return (self.resources.limits if self.resources else None) or _EMPTY

    @property
    def requests(self) -> Mapping[str, Quantity]:
        """Requests; empty if there are none."""
        return (self.resources.requests if self.resources else None) or _EMPTY

    def asks(self, resource: str) -> Quantity | None:
        """Return what counts for an extended resource: its limit, else its request, else None."""
        resources = self.resources
        if resources is None:
            return None
        if resources.limits and resource in resources.limits:
            return resources.limits[resource]
        return resources.requests.get(resource) if resources.requests else None

    @property
    def variables(self) -> Sequence[Any]:
        """`env`, decoded only when asked for; empty if it is no list, or too deep for one of the API's."""
        return _list(self.env)

    def config_map_names(self, variable: str) -> Iterator[str]:
        """Yield the ConfigMaps from which an environment variable of the container comes."""
        if variable.encode() not in bytes(self.env):
            return
        try:
            variables = _variables.decode(self.env) or ()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return  # the API server refuses the pod
        for found in variables:
            source = found.valueFrom
            if found.name == variable and source is not None and source.configMapKeyRef is not None:
                yield source.configMapKeyRef.name or ""

    @property
    def has_command(self) -> bool:
        """Whether the container names its program itself; if not, the image does."""
        return bool(first_words(bytes(self.command), 0))

    @property
    def command_line(self) -> list[str]:
        """`command` and `args`, in the order they run, up to the word that passes `LONGEST_COMMAND_LINE`."""
        words = first_words(bytes(self.command))
        return words + first_words(bytes(self.args), LONGEST_COMMAND_LINE - sum(map(len, words)) - len(words))


class Owner(Struct, gc=False):
    """One of `metadata.ownerReferences`."""

    apiVersion: str | None = None
    kind: str | None = None
    name: str | None = None

    @property
    def group(self) -> str:
        """API group of the owner's kind; empty for the core group, which `v1` and `/v1` both name."""
        return (self.apiVersion or "").rpartition("/")[0]

    @property
    def is_daemon_set(self) -> bool:
        """Whether the owner is a DaemonSet of Kubernetes itself."""
        return self.kind == "DaemonSet" and self.group == "apps"


class Metadata(Struct):
    """`metadata` of a pod, under its names in JSON."""

    name: str | None = None
    generateName: str | None = None
    namespace: str | None = None
    labels: dict[str, str | None] | None = None
    annotations: dict[str, str | None] | None = None
    ownerReferences: list[Owner] | None = None


class Spec(Struct):
    """`spec` of a pod, under its names in JSON."""

    containers: list[Container] | None = None
    initContainers: list[Container] | None = None
    schedulerName: str | None = None
    nodeName: str | None = None
    priorityClassName: str | None = None
    runtimeClassName: str | None = None
    tolerations: list[dict[str, Any]] | None = None
    resourceClaims: Raw = _NOTHING


class PodDocument(Struct):
    """A v1 Pod. None is what the document leaves out or has as null."""

    spec: Spec
    metadata: Metadata | None = None


class ContainerFacts(Struct, frozen=True):
    """What the containers of a pod ask for, all of them together."""

    gpu_resources: Mapping[str, None]
    """Names of the resources that name a GPU and that any container limits or requests, in their order."""
    use_claims: bool
    """Whether any container uses a resource claim."""

    @classmethod
    def of(cls, containers: Sequence[Container]) -> "ContainerFacts":
        """Read the resources of every container once."""
        gpu_resources: dict[str, None] = {}
        use_claims = False
        for container in containers:
            resources = container.resources
            if resources is None:
                continue
            use_claims = use_claims or _has_items(resources.claims)
            for part in (resources.limits, resources.requests):
                for name in part or ():
                    if name not in gpu_resources and "/" in name and names_gpu(name):
                        gpu_resources[name] = None
        return cls(gpu_resources, use_claims)


class PodView:
    """What decisions read of one pod, with nulls and absences evened out."""

    __slots__ = (
        "all_containers",
        "annotations",
        "container_facts",
        "containers",
        "document",
        "gpu_resources",
        "init_containers",
        "labels",
        "metadata",
        "nvidia_annotations",
        "owners",
        "spec",
    )

    def __init__(self, document: PodDocument, container_facts: "ContainerFacts | None" = None) -> None:
        """Read a document.

        Args:
            document: the decoded pod.
            container_facts: of another pod with the same containers; None reads them from the document.
        """
        self.document = document
        self.metadata = metadata = document.metadata or Metadata()
        self.spec = spec = document.spec
        self.labels = _strings(metadata.labels)
        self.annotations = _strings(metadata.annotations)
        self.owners: Sequence[Owner] = metadata.ownerReferences or ()
        self.containers: Sequence[Container] = spec.containers or ()
        self.init_containers: Sequence[Container] = spec.initContainers or ()
        self.all_containers: list[Container] = [*self.containers, *self.init_containers]
        """Regular containers, then init containers: KAI's own order (`getFirstGPULimit`)."""
        self.container_facts = container_facts or ContainerFacts.of(self.all_containers)
        """What the containers ask for, read in one pass."""
        self.gpu_resources = self.container_facts.gpu_resources
        """Names of the resources that name a GPU and that any container limits or requests, each once."""
        self.nvidia_annotations = [key for key in self.annotations if key.startswith(NVIDIA_PREFIX)]
        """Keys of the annotations with NVIDIA's prefix."""

    @property
    def name(self) -> str:
        """The pod's name; empty where the API server will make one from `generate_name`."""
        return self.metadata.name or ""

    @property
    def generate_name(self) -> str:
        """The prefix of a name that is still to be made, or empty."""
        return self.metadata.generateName or ""

    @property
    def namespace(self) -> str:
        """The namespace the document names, or empty."""
        return self.metadata.namespace or ""

    @property
    def scheduler_name(self) -> str:
        """`spec.schedulerName`, or empty."""
        return self.spec.schedulerName or ""

    @property
    def node_name(self) -> str:
        """`spec.nodeName`, or empty."""
        return self.spec.nodeName or ""

    @property
    def priority_class(self) -> str:
        """`spec.priorityClassName`, or empty."""
        return self.spec.priorityClassName or ""

    @property
    def is_of_daemon_set(self) -> bool:
        """Whether a DaemonSet owns the pod."""
        return any(owner.is_daemon_set for owner in self.owners)

    @property
    def owner_name(self) -> str:
        """The first owner's name, or empty for a bare pod."""
        return (self.owners[0].name or "") if self.owners else ""

    @property
    def uses_mig(self) -> bool:
        """Whether any container asks for a MIG device, or the legacy annotation does."""
        names = chain(self.gpu_resources, self.nvidia_annotations)
        return any(name.startswith(keys.MIG_PREFIX) for name in names)

    @property
    def uses_claims(self) -> bool:
        """Whether the pod names or uses dynamic resource claims (DRA), extended resources of DRA included."""
        return (
            self.container_facts.use_claims
            or _has_items(self.spec.resourceClaims)
            or any(map(names_device_class, self.gpu_resources))
        )


_decoder = msgspec.json.Decoder(PodDocument)


def decode_pod(document: bytes | Raw) -> PodView:
    """Read a pod from JSON.

    Raises:
        MalformedPod: a field that is read has another shape than the API allows.
    """
    try:
        return PodView(_decoder.decode(document))
    except msgspec.ValidationError as error:
        raise MalformedPod(explain_shape(error, "pod")) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedPod(f"the pod is not JSON: {error}") from None
    except RecursionError:
        raise MalformedPod("the pod is nested too deep") from None


def explain_shape(error: msgspec.ValidationError, whole: str) -> str:
    """Say what msgspec found with the path in front: `spec.containers: expected array, got object`."""
    said, _, place = str(error).partition(" - at `")
    path = place.removesuffix("`").removeprefix("key in ").removeprefix("$").removeprefix(".") or whole
    return f"{path}: {said[:1].lower()}{said[1:].replace('`', '')}"


def _strings(found: dict[str, str | None] | None) -> Mapping[str, str]:
    if not found:
        return _EMPTY
    if None in found.values():  # Go reads null in a map of strings as ""
        return {key: text or "" for key, text in found.items()}
    return found  # type: ignore[return-value]  # no value is None


def _list(raw: Raw) -> list[Any]:
    try:
        decoded = msgspec.json.decode(raw) if bytes(raw) else None
    except RecursionError:
        return []
    return decoded if isinstance(decoded, list) else []


def _has_items(raw: Raw) -> bool:
    return raw is not _NOTHING and bytes(raw) not in (b"null", b"[]")
