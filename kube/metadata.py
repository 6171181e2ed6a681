"""What every kind of object has in common: metadata, times, paths, label selectors."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

Time = Annotated[datetime, Meta(tz=True)]
"""A time as the API server writes it, with a time zone; one without is an error, as it cannot be compared."""

METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Media type of a list without spec and status."""

NAME_LABEL: Final = "kubernetes.io/metadata.name"  # of each namespace, with its name


class ObjectMeta(Struct, frozen=True, rename="camel"):
    """`metadata` of an object: what identifies it. Services decode no more of it than they need."""

    name: str
    namespace: str = ""  # empty for an object that is not namespaced


class VersionedMeta(ObjectMeta, frozen=True):
    """`metadata` that tells the object from another one, or from another version, of its name."""

    uid: str = ""
    resource_version: str = ""  # precondition of a patch; empty if the API server sent none


class Requirement(Struct, frozen=True):
    """One requirement of a label selector or of a node affinity."""

    key: str
    operator: str
    values: frozenset[str] | None = None

    def __str__(self) -> str:
        values = f" [{', '.join(sorted(self.values))}]" if self.values else ""
        return f"{self.key} {self.operator}{values}"

    @property
    def query(self) -> str:
        """The requirement in the form of `kubectl get -l`."""
        if self.operator in ("Exists", "DoesNotExist"):
            return f"{'' if self.operator == 'Exists' else '!'}{self.key}"
        return f"{self.key} {self.operator.lower()} ({','.join(sorted(self.values or ()))})"

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether labels meet the requirement, as in `k8s.io/apimachinery/pkg/labels`.

        NotIn also holds for labels without the key. Gt and Lt are of node affinities only.
        """
        values = self.values or frozenset()
        match self.operator:
            case "In":
                return labels.get(self.key) in values
            case "NotIn":
                return labels.get(self.key) not in values
            case "Gt" | "Lt":
                try:
                    actual, limit = int(labels.get(self.key, "")), int(next(iter(values), ""))
                except ValueError:
                    return False
                return actual > limit if self.operator == "Gt" else actual < limit
        return (self.key in labels) is (self.operator == "Exists")


class LabelSelector(Struct, frozen=True):
    """A label selector; an empty one selects everything."""

    labels: dict[str, str] | None = msgspec.field(name="matchLabels", default=None)
    expressions: list[Requirement] | None = msgspec.field(name="matchExpressions", default=None)

    @property
    def all_requirements(self) -> list[Requirement]:
        """All requirements; those of matchLabels come first, with the operator In."""
        from_labels = (
            Requirement(key, "In", frozenset({value})) for key, value in (self.labels or {}).items()
        )
        return [*from_labels, *(self.expressions or ())]

    @property
    def query(self) -> str:
        """The selector in the form of `kubectl get -l`; empty if it selects everything."""
        labels = (f"{key}={value}" for key, value in (self.labels or {}).items())
        return ",".join([*labels, *(line.query for line in self.expressions or ())])

    @property
    def requirements(self) -> frozenset[Requirement]:
        """All requirements, so that two selectors can be compared regardless of order."""
        return frozenset(self.all_requirements)

    @property
    def excluded_namespaces(self) -> frozenset[str]:
        """The namespaces that the selector excludes by name."""
        lines = (each for each in self.requirements if (each.key, each.operator) == (NAME_LABEL, "NotIn"))
        return frozenset(name for line in lines for name in line.values or ())

    def beyond(self, other: "LabelSelector") -> list[Requirement]:
        """Return the requirements that the other selector lacks."""
        return [line for line in self.all_requirements if line not in other.requirements]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the selector selects an object with these labels."""
        return not self.unmet(labels)

    def unmet(self, labels: Mapping[str, str]) -> list[Requirement]:
        """Return the requirements that labels do not meet."""
        return [line for line in self.all_requirements if not line.holds(labels)]


EVERYTHING: Final = LabelSelector()
