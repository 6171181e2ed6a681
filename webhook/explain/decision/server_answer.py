"""What an API server answers to the creation of a pod, beside the decision that `explain` computes itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

RBAC: Final = "RBAC"
"""The author of a refusal because the right to create pods is missing."""


@dataclass(frozen=True, slots=True)
class AnswerDifference:
    """A field that kaishare decides, and that the API server answers differently than predicted."""

    field: str
    """Such as `annotation gpu-fraction`, `container main: limit nvidia.com/gpu` or `verdict`."""
    predicted: str | None
    """The value by our own decision; None if the pod has none."""
    answered: str | None
    """The value in the API server's answer; None if the pod has none."""

    @property
    def sentence(self) -> str:
        """The difference in one line."""
        return f"{self.field}: {self.answered or 'none'} in the cluster, {self.predicted or 'none'} here"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswer:
    """The API server's answer to a pod that is created by dry run. Every text is one printable line."""

    is_admitted: bool | None
    """None if there is no answer; then `problem` has the reason."""
    problem: str = ""
    """Why there is no answer; empty if there is one."""
    refused_by: str = ""
    """What refused the pod, such as `quota gpu-quota`; empty if it is admitted, or if this is not known."""
    refusal: str = ""
    """The API server's whole message; empty if the pod is admitted."""
    warnings: Sequence[str] = ()
    """The warnings to the pod's author, word for word."""
    changes: Sequence[str] = ()
    """Lines of a diff between the pod that was sent and the one that came back, without defaults."""
    differences: Sequence[AnswerDifference] = ()
    """What kaishare decides and the cluster answered differently."""
    causes: Sequence[str] = ()
    """Sentences: the causes of the differences and of a refusal, as far as they are known."""
    notes: Sequence[str] = ()
    """Sentences about how the answer was got, where that was not by the pod as its controller sends it."""
