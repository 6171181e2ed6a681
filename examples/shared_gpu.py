"""The scenes of the demo: workloads of one namespace that share one GPU by sizes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from examples.reviews import AdmittedPod, in_words, pods_in, share_in_words
from examples.terminal import Style
from kai import keys
from kai.kaishare_keys import REASON, SIZE
from webhook.policy.templates import FoundPod

FOLDER = Path(__file__).parent / "scenes"


@dataclass(frozen=True, slots=True)
class Scene:
    """A folder of `examples/scenes`: a namespace with sizes, and workloads."""

    folder: Path

    @property
    def namespace_file(self) -> Path:
        """File of the Namespace, which the policy's owner writes."""
        return self.folder / "namespace.yaml"

    @property
    def workloads_file(self) -> Path:
        """File of the workloads, which developers write."""
        return self.folder / "workloads.yaml"

    @property
    def title(self) -> str:
        """The first sentence of the namespace's file."""
        return self.namespace_file.read_text().partition("\n")[0].removeprefix("# ").removesuffix(".")

    def pods(self) -> list[FoundPod]:
        """Return the pods that the workloads create."""
        return pods_in(self.workloads_file)


def scenes() -> list[Scene]:
    """Return all scenes in alphabetical order."""
    return [Scene(folder) for folder in sorted(FOLDER.iterdir()) if folder.is_dir()]


def scene_lines(
    scene: Scene, policies: Mapping[str, Mapping[str, Any]], pods: Sequence[AdmittedPod], style: Style
) -> Iterator[str]:
    """Yield the lines about a scene: the sizes, each pod with its size, and the sum of the shares.

    Args:
        scene: the scene.
        policies: the policies by namespace, as the webhook's `/policies` shows them.
        pods: the pods after their reviews.
        style: the style of the lines.
    """
    yield style.heading(scene.title)
    folder = scene.folder.relative_to(FOLDER.parents[1])
    yield style.folded(f"  {folder}; the API server sends the warnings to the creator of the pod", "dim")
    for namespace in dict.fromkeys(pod.source.namespace for pod in pods):
        yield f"  namespace {namespace}"
        for size in policies.get(namespace, {}).get("sizes", ()):
            share = share_in_words(size["share"] or {}) or "a whole GPU"
            yield f"    size {size['name']:6} {share:14} for pods with {size['selector']}"
    for pod in pods:
        yield f"  {pod.title:24}  {style.paint(in_words(pod.document), 'green')}"
        yield f"    {_cause(pod, policies)}"
        yield from (
            style.folded(f"    Warning: {warning}", "dim", indent="      ") for warning in pod.warnings
        )
    yield f"  {_sum_in_words(pods)}"


def _cause(pod: AdmittedPod, policies: Mapping[str, Mapping[str, Any]]) -> str:
    """Describe the size that gave the pod its share, or the reason for none."""
    name = pod.annotations.get(SIZE)
    for size in policies.get(pod.source.namespace, {}).get("sizes", ()):
        if size["name"] == name:
            return f"size {name}, selected by {size['selector']}"
    return pod.annotations.get(REASON, "unchanged")


def _sum_in_words(pods: Sequence[AdmittedPod]) -> str:
    fractions = [pod.annotations.get(keys.GPU_FRACTION) for pod in pods]
    written = [fraction for fraction in fractions if fraction is not None]
    if len(written) < len(pods):
        return "a pod has no fraction of a GPU"
    total = sum(map(Decimal, written))
    fit = "the pods fit on one GPU" if total <= 1 else "the pods do not fit on one GPU"
    return f"{' + '.join(written)} = {total} of a GPU: {fit}"
