"""Decides which candidate counts for a pod on a GPU. Pure."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from gpuagent.shares.pod_share import Amount, Entitlement, Relation, ShareSource


class Record(Enum):
    """What is known of a pod's BindRequest, which KAI writes before it binds the pod."""

    SHARE = "share"
    NO_SHARE = "no share"
    MALFORMED = "malformed"
    """It exists, so KAI has placed the pod, and its content is unknown."""
    NONE = "none"
    UNKNOWN = "unknown"
    """It has never been known whether there is one."""


_OF_KAI: Final = frozenset({Record.SHARE, Record.NO_SHARE, Record.MALFORMED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Which sources speak of a pod, and how certain that is."""

    record: Record = Record.NONE
    is_labelled: bool = False
    """Whether the pod has the label of a GPU group that KAI wrote, or may have written."""
    has_annotation: bool = False
    has_whole_gpus: bool = False
    has_claimed_gpus: bool = False
    """By ResourceClaims, with a known size."""
    has_unsized_gpus: bool = False
    """By a ResourceClaim, or by another GPU resource than `nvidia.com/gpu`."""
    is_running: bool = True

    @property
    def is_placed(self) -> bool:
        """Whether KAI placed the pod."""
        return self.is_labelled or self.record in _OF_KAI

    @property
    def awaits_record(self) -> bool:
        """Whether KAI may have placed the pod."""
        return not self.is_placed and self.record is Record.UNKNOWN

    @property
    def is_annotation_ignored(self) -> bool:
        """Whether KAI did not place the running pod, so that its annotation is no share."""
        return self.is_running and not self.is_placed and not self.awaits_record

    @property
    def counts(self) -> ShareSource | None:
        """The source that counts; see `entitlement`."""
        if self.record is Record.SHARE:
            return ShareSource.BIND_REQUEST
        if self.has_annotation and self.record is not Record.NO_SHARE and not self.is_annotation_ignored:
            return ShareSource.ANNOTATION
        if self.has_whole_gpus:
            return ShareSource.WHOLE_GPU
        return ShareSource.RESOURCE_CLAIM if self.has_claimed_gpus else None


def entitlement(
    sources: Sources,
    relation: Relation,
    share: Amount | None = None,
    limit: Amount | None = None,
    *,
    ignored_limit: Amount | None = None,
) -> Entitlement:
    """Return what a pod may use on a GPU, given the amounts there by the source that counts.

    The source that counts, by what is known ("-" stands for any value):

    | BindRequest | KAI's label | annotation | runs | counts                              |
    |-------------|-------------|------------|------|-------------------------------------|
    | share       | -           | -          | -    | bind-request                        |
    | no share    | -           | -          | -    | whole-gpu                           |
    | malformed   | -           | yes        | -    | annotation                          |
    | none        | yes         | yes        | -    | annotation                          |
    | none        | no          | yes        | no   | annotation                          |
    | none        | no          | yes        | yes  | whole-gpu; the annotation is ignored |
    | unknown     | yes         | yes        | -    | annotation                          |
    | unknown     | no          | yes        | -    | annotation; the record is awaited   |
    | unknown     | no          | no         | -    | whole-gpu; the record is awaited    |
    | -           | -           | no         | -    | whole-gpu                           |

    Without whole GPUs, `resource-claim` counts in place of `whole-gpu`, and without claims of a known size
    nothing. A GPU of such a claim is the pod's own, with the memory of the claim, whatever counts. While the
    record is awaited there is no verdict `no-share` or `unassigned-gpu`. The verdicts about records,
    `share-changed` and `no-reservation`, are for bind-request and annotation only. What the use of a GPU is
    then:

    | counts                   | GPU      | compared with       | without an amount | GPUs of unknown size |
    |--------------------------|----------|---------------------|-------------------|----------------------|
    | bind-request, annotation | own      | share, promised     | excused           | share, promised      |
    | bind-request, annotation | possible | share, if KAI placed the pod | excused  | excused              |
    | bind-request, annotation | other    | -                   | unassigned-gpu    | excused              |
    | whole-gpu                | own      | -                   | excused           | excused              |
    | whole-gpu                | withheld | -                   | unassigned-gpu    | excused              |
    | whole-gpu                | other    | -                   | excused           | excused              |
    | resource-claim           | own      | share, promised     | excused           | share, promised      |
    | resource-claim           | other    | -                   | unassigned-gpu    | excused              |
    | nothing                  | other    | -                   | no-share          | excused              |
    """
    counts, is_unsized = sources.counts, sources.has_unsized_gpus
    if counts is None:
        return Entitlement(relation, is_excused=is_unsized)
    is_whole = counts is ShareSource.WHOLE_GPU
    if relation is Relation.OWN:
        is_excused = is_whole or share is None
        return Entitlement(relation, share, limit, is_excused, ignored_limit)
    if is_whole:
        return Entitlement(relation, is_excused=relation is not Relation.WITHHELD or is_unsized)
    if relation is Relation.POSSIBLE:
        if not sources.is_placed or sources.has_whole_gpus or is_unsized:
            share = None
        return Entitlement(relation, share, is_excused=share is None)
    return Entitlement(relation, is_excused=is_unsized)
