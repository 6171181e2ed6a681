"""The scenes of the demo: workloads of one namespace that share one GPU by sizes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from examples.reviews import AdmittedPod, in_words, share_in_words
from examples.terminal import Style
from kai import keys
from kai.own_labels import SIZE
from service.documents import flatten_lists, load_path
from webhook.explain.manifests import FoundPod, find_pods

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
        return [
            pod for document in flatten_lists(load_path(self.workloads_file)) for pod in find_pods(document)
        ]


def scenes() -> list[Scene]:
    """Return all scenes in alphabetical order."""
    return [Scene(folder) for folder in sorted(FOLDER.iterdir()) if folder.is_dir()]


def scene_lines(
    scene: Scene, policy: Mapping[str, Any], pods: Sequence[AdmittedPod], style: Style
) -> Iterator[str]:
    """Yield the lines about a scene: the sizes, each pod with its size, and the sum of the shares.

    Args:
        scene: the scene.
        policy: the namespace's policy by the webhook's `/policies`.
        pods: the pods after their reviews.
        style: the style of the lines.
    """
    yield style.heading(scene.title)
    folder = scene.folder.relative_to(FOLDER.parents[1])
    yield style.paint(f"  {folder}, namespace {policy['namespace']}; kubectl prints the warnings", "dim")
    sizes = {size["name"]: size for size in policy["sizes"]}
    for size in sizes.values():
        share = share_in_words(size["share"] or {}) or "a whole GPU"
        yield f"    size {size['name']:6} {share:14} for pods with {size['selector']}"
    for pod in pods:
        size = sizes[pod.annotations[SIZE]]
        why = f"size {size['name']}, selected by {size['selector']}"
        yield f"  {pod.title:24}  {style.paint(f'{in_words(pod.document):25}', 'green')}  {why}"
        for warning in pod.warnings:
            yield style.paint(f"    Warning: {warning}", "dim")
    yield f"  {_sum_in_words(pods)}"


def _sum_in_words(pods: Sequence[AdmittedPod]) -> str:
    fractions = [Decimal(pod.annotations[keys.GPU_FRACTION]) for pod in pods]
    total = sum(fractions)
    fit = "the pods fit on one GPU" if total <= 1 else "the pods do not fit on one GPU"
    return f"{' + '.join(map(str, fractions))} = {total} of a GPU: {fit}"
