"""The closed list of what the admission policies do otherwise than the webhook."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from console.render.expressions import (
    MOST_CONTAINERS,
    MOST_ENTRIES,
    MOST_KEYS,
    MOST_OF_NAMESPACE,
    MOST_OWNERS,
)
from webhook.policy.decide_share import MOST_GPU_CONTAINERS


class DifferenceName(StrEnum):
    """The differences by name."""

    SELECTORS = "selectors"
    COMMANDS = "commands"
    LARGE_PODS = "large-pods"
    LARGE_NAMESPACES = "large-namespaces"
    PLAIN_SHARES = "plain-shares"
    FRAMEWORKS = "frameworks"
    OBSERVE = "observe"
    DEFAULT_CLASS = "default-class"
    LIMIT_RANGES = "limit-ranges"
    MESSAGES = "messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormDifference:
    """One difference."""

    name: DifferenceName
    webhook: str
    policy: str


DIFFERENCES: Final = (
    FormDifference(
        name=DifferenceName.SELECTORS,
        webhook="A pod gets the size whose selector matches its labels.",
        policy="Selectors are not read. There a pod that names no size keeps its GPU (`selectors-unread`).",
    ),
    FormDifference(
        name=DifferenceName.COMMANDS,
        webhook="The tasks of a `TF_CONFIG` are counted, and torchrun's `--nnodes` is read as a shell"
        " reads it.",
        policy="Every `TF_CONFIG`, and every torchrun with another value than `--nnodes=1` or with a word"
        " that begins with `$`, counts as several. The GPU stays (`distributed`).",
    ),
    FormDifference(
        name=DifferenceName.LARGE_PODS,
        webhook="Every pod is decided.",
        policy=f"A pod with more than {MOST_KEYS} labels, annotations or tolerations, {MOST_OWNERS} owners,"
        f" {MOST_CONTAINERS} containers, or {MOST_ENTRIES} limits, requests, variables and words of commands"
        " stays unchanged."
        " Under `enforce` it is refused.",
    ),
    FormDifference(
        name=DifferenceName.LARGE_NAMESPACES,
        webhook="Every namespace is read.",
        policy=f"In a namespace with more than {MOST_OF_NAMESPACE} labels or annotations no size is given,"
        " and edits of its labels are not refused.",
    ),
    FormDifference(
        name=DifferenceName.PLAIN_SHARES,
        webhook="Every share that a release of KAI reads is compared with the cap.",
        policy="Under `enforce`, a share that is no plain number is refused in a namespace with a cap, and"
        f" the GPUs of more than {MOST_GPU_CONTAINERS} containers are added up even where one is used after"
        " another.",
    ),
    FormDifference(
        name=DifferenceName.FRAMEWORKS,
        webhook="`kaishare.dev/framework-memory: set` sets the memory option of a framework.",
        policy="The label has no effect.",
    ),
    FormDifference(
        name=DifferenceName.OBSERVE,
        webhook="The log, the metrics and `explain` report what would change.",
        policy="`explain` alone does.",
    ),
    FormDifference(
        name=DifferenceName.DEFAULT_CLASS,
        webhook="The default PriorityClass is read from the cluster.",
        policy="It is a setting; without it a pod with that class gets no label `priorityClassName`.",
    ),
    FormDifference(
        name=DifferenceName.LIMIT_RANGES,
        webhook="In a namespace with a LimitRange that has a minimum or maximum for `nvidia.com/gpu`, pods"
        " keep their GPU (`limit-range`).",
        policy="LimitRanges are not read: the pod's GPU becomes a share, and the API server refuses the pod.",
    ),
    FormDifference(
        name=DifferenceName.MESSAGES,
        webhook="Warnings, hints, Events, a log, metrics; a refusal names the nearest size or label.",
        policy="The annotation `kaishare.dev/reason` on changed pods, and one sentence for a refusal.",
    ),
)
"""Every difference. tests/cluster/test_short_forms.py fails on any other one."""
