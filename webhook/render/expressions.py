"""What stands for each `${NAME}` in policies/: keys, forms and lists of the tables that `decide` reads."""

from collections.abc import Mapping
from dataclasses import fields
from string import Formatter
from typing import Final

from kai import keys, own_labels, quantity
from kai.cel import cel_list, is_container_memory_key, is_of_kai, literal, names_gpu, starts_with
from kai.command_lines import LONGEST_COMMAND_LINE
from kai.gpu_resources import DEVICE_CLASS_PREFIX
from kai.key_classes import (
    CREATION_KEYS,
    FREE_KEYS,
    RESERVED_APPS,
    USER_PREFIXES,
)
from kai.share import CONTAINER_MEMORY, CONTAINER_MEMORY_SUFFIXES, MIB
from webhook.policy import distributed
from webhook.policy.checks import (
    CONFIG_MAP_ENDING,
    CONFIG_MAP_FORM,
    ROUNDING,
    SHARE_ANNOTATIONS,
    SHORTENED_NAME,
)
from webhook.policy.decide_share import MOST_GPU_CONTAINERS
from webhook.policy.labels import LABELS, NamespacePolicy, PolicyLabel
from webhook.policy.patch import TOLERATION, escape
from webhook.policy.reasons import Reason
from webhook.policy.sizes import A_SIZE, MIB_PER_UNIT, MOST_SIZES, SIZE_MEMORY_FORM, WHOLE
from webhook.policy.values import FRACTION_FORM, MIB_FORM, MOST_MIB
from webhook.policy.verify import DAEMON_SET_CONTROLLERS
from webhook.render import bounds


def pattern(form: str) -> str:
    """Return a regular expression that matches the whole text, as the inside of a CEL string."""
    return _inside(f"^(?:{form})$")


def has_form(text: str, form: str | tuple[str, ...]) -> str:
    """Return the CEL expression for: the text has the form of a label's value."""
    if isinstance(form, tuple):
        return f"{text} in {cel_list(form)}"
    fits = f"{text}.matches('{pattern(form)}')"
    if form == own_labels.GRACE_PATTERN:
        return f"{fits} && {_is_grace(text)}"
    if form != MIB_FORM:
        return fits
    largest = str(MOST_MIB)  # texts of equal length are in the order of their numbers
    return f"{fits} && (size({text}) < {len(largest)} || {text} <= '{largest}')"


def _is_grace(text: str) -> str:
    """Return the expression for: a number and a unit are a time within the bounds of the label."""
    number, unit = f"int({text}.substring(0, size({text}) - 1))", f"{text}.substring(size({text}) - 1)"
    units = "{" + ", ".join(f"'{name}': {seconds}" for name, seconds in own_labels.GRACE_UNITS.items()) + "}"
    seconds = f"{number} * {units}[{unit}]"
    return f"{seconds} >= {own_labels.SHORTEST_GRACE} && {seconds} <= {own_labels.LONGEST_GRACE}"


def _inside(text: str) -> str:
    """Return the text as the inside of a CEL string."""
    return literal(text)[1:-1]


_ABSENT: Final[Mapping[str, object]] = {field.name: field.default for field in fields(NamespacePolicy)}


def _value(label: PolicyLabel) -> str:
    """Return what follows a map of labels: the value of one of them if it is allowed, else its default."""
    absent = _ABSENT.get(label.field)
    default = literal(absent) if isinstance(absent, str) else "''"
    if label.key == own_labels.MODE:
        default = "variables.defaultMode"
    is_allowed = has_form("value", label.form)
    return (
        f"[?'{label.key}'].optFlatMap(value, {is_allowed} ? optional.of(value) : optional.none())"
        f".orValue({default})"
    )


def sentence(reason: Reason, **details: str) -> str:
    """Return the expression for the sentence of a reason, whose details are expressions."""
    parts = []
    for text, name, _, _ in Formatter().parse(reason.text):
        parts += [literal(text)] if text else []
        parts += [details[name]] if name else []
    return " + ".join(parts)


def _in_quotes(text: str) -> str:
    return f"'\"' + {text} + '\"'"


def _variable(row: distributed.Row) -> str:
    """Return the expression for a variable's value; the last one of a name counts, as for the kubelet."""
    named = f"variables.environment.filter(variable, variable.name == '{row.name}')"
    return f"string({named}.last().?value.orValue(''))"


def _is_invalid_label() -> str:
    """Return the expression for: `value` is not allowed for the label `key`, or the label is unknown."""
    cases = [f"key == '{label.key}' ? !({has_form('value', label.form)})" for label in LABELS.values()]
    return f"({' : '.join(cases)} : {starts_with('key', [own_labels.PREFIX])})"


def _mib_of_size() -> str:
    """Return the expression for the MiB of the size `text`; 0 if it has another form or is too large."""
    number = "int(text.substring(0, size(text) - 2))"
    units = " : ".join(
        f"text.endsWith('{unit}') ? ({number} <= {MOST_MIB // mib} ? {number} * {mib} : 0)"
        for unit, mib in MIB_PER_UNIT.items()
    )
    return f"(!text.matches('{pattern(SIZE_MEMORY_FORM)}') ? 0 : {units} : 0)"


_MIB_OF_SIZE: Final = _mib_of_size()
_IS_SIZE_AMOUNT: Final = (
    f"({_MIB_OF_SIZE} > 0 ? (variables.maxMemory != '' ? {_MIB_OF_SIZE} <= int(variables.maxMemory)"
    " : variables.maxFraction == '')"
    f" : (text == '{WHOLE}' || text.matches('{pattern(FRACTION_FORM)}'))"
    " && (variables.maxFraction != '' ? double(text) <= double(variables.maxFraction)"
    " : variables.maxMemory == ''))"
)
"""The expression for: the value `text` of a size is allowed, and within the namespace's caps."""

_EDITS_CAP: Final = "(variables.editsMaxFraction || variables.editsMaxMemory)"
_IS_SIZE_ABOVE_EDITED_CAP: Final = (
    f"({_MIB_OF_SIZE} > 0 ? (variables.maxMemory != ''"
    f" ? variables.editsMaxMemory && {_MIB_OF_SIZE} > int(variables.maxMemory)"
    f" : variables.maxFraction != '' && {_EDITS_CAP})"
    f" : (text == '{WHOLE}' || text.matches('{pattern(FRACTION_FORM)}')) && (variables.maxFraction != ''"
    " ? variables.editsMaxFraction && double(text) > double(variables.maxFraction)"
    f" : variables.maxMemory != '' && {_EDITS_CAP}))"
)
"""The expression for: a cap that the request edits does not allow the size `text`, or cannot be compared."""
_RANK_ROWS: Final = (
    *distributed.VARIABLES,
    distributed.JAX_PROCESSES,
    distributed.CLUSTER,
    *distributed.RENDEZVOUS,
)
_LABEL_NAMES: Final[Mapping[str, str]] = {
    keys.QUEUE_LABEL: "queue",
    own_labels.MODE: "mode",
    own_labels.SCHEDULER: "scheduler",
    own_labels.PRIORITY: "priority",
    own_labels.TOLERATION: "toleration",
    own_labels.DISTRIBUTED: "distributed",
    own_labels.SHARE_FOR: "shareFor",
    own_labels.MAX_FRACTION: "maxFraction",
    own_labels.MAX_MEMORY: "maxMemory",
    own_labels.FRACTION: "fraction",
    own_labels.MEMORY: "memory",
    own_labels.VCLUSTER: "vcluster",
}
"""The labels that a decision reads, with the names of their variables."""

_SIZES: Final = (
    f"variables.namespaceLabels.filter(key, key.startsWith('{own_labels.SIZE_PREFIX}'))"
    f".map(key, key.substring({len(own_labels.SIZE_PREFIX)}))"
)
_INVALID_QUEUE: Final = (
    f"label {keys.QUEUE_LABEL} is not allowed; allowed: {LABELS[keys.QUEUE_LABEL].allowed}"
)
_QUEUE_OF_POD: Final = f"variables.labels['{keys.QUEUE_LABEL}']"
_GPUS: Final = "string(variables.gpusAskedFor) + ' of a GPU'"
_MIB: Final = "string(variables.mibAskedFor) + ' MiB'"
_DENIALS: Final[Mapping[str, str]] = {
    "nodeNameDenied": sentence(Reason.NODE_NAME_DENIED),
    "mirrorDenied": sentence(Reason.MIRROR_DENIED),
    "daemonSetDenied": sentence(Reason.DAEMONSET_DENIED),
    "daemonSetGpuDenied": sentence(Reason.DAEMONSET_GPU_DENIED, what="variables.gpuUse"),
    "optOutDenied": sentence(Reason.OPT_OUT_DENIED, value=literal('"false"')),
    "wrongScheduler": sentence(
        Reason.WRONG_SCHEDULER, scheduler=_in_quotes("variables.podScheduler"), allowed="variables.scheduler"
    ),
    "wrongQueue": sentence(
        Reason.WRONG_QUEUE,
        queue=f"('{keys.QUEUE_LABEL}' in variables.labels ? {_in_quotes(_QUEUE_OF_POD)} : 'not set')",
        allowed="variables.queue",
    ),
    "invalidQueue": sentence(Reason.POLICY_INVALID, problem=literal(_INVALID_QUEUE)),
    "unknownSize": sentence(
        Reason.SIZE_UNKNOWN,
        size=_in_quotes("variables.sizeName"),
        sizes="(!variables.hasSizes ? 'the namespace has no sizes'"
        f" : size(variables.namespaceLabels) > {bounds.MOST_KEYS} ? 'its sizes are labels of the namespace'"
        f" : 'sizes: ' + {_SIZES}.join(', '))",
    ),
    "invalidSize": sentence(
        Reason.POLICY_INVALID, problem="'label ' + variables.sizeLabel + ' is not a size that pods can get'"
    ),
    "aboveMaxFraction": sentence(
        Reason.ABOVE_CAP, amount=_GPUS, cap=f"variables.maxFraction + ' ({own_labels.MAX_FRACTION})'"
    ),
    "aboveMaxMemory": sentence(
        Reason.ABOVE_CAP, amount=_MIB, cap=f"variables.maxMemory + ' MiB ({own_labels.MAX_MEMORY})'"
    ),
    "otherUnitThanMemory": sentence(Reason.CAP_UNIT, amount=_GPUS, key=literal(keys.GPU_MEMORY)),
    "otherUnitThanFraction": sentence(Reason.CAP_UNIT, amount=_MIB, key=literal(keys.GPU_FRACTION)),
    "notComparable": sentence(
        Reason.CAP_UNIT,
        amount=f"(size(variables.otherGpus) > 0 ? {_in_quotes('variables.otherGpus[0]')}"
        f" : variables.usesMig ? '{keys.MIG_PREFIX}…' : 'a ResourceClaim')",
        key=f"(variables.maxFraction == '' ? '{keys.GPU_MEMORY}' : '{keys.GPU_FRACTION}')",
    ),
    "reservedKey": sentence(
        Reason.RESERVED_KEY, key=_in_quotes("variables.reservedKeys[0]"), owner="'KAI or vCluster'"
    ),
}
"""The sentences about pods that mode enforce refuses."""

WORDS: Final[Mapping[str, str]] = {
    name + "".join(part.capitalize() for part in word.split("-")): word
    for key, name in _LABEL_NAMES.items()
    for word in (LABELS[key].form if isinstance(LABELS[key].form, tuple) else ())
}
"""The words that labels allow, such as `modeOff`."""

VALUES: Final[Mapping[str, str]] = {
    **{reason.name: literal(reason.code) for reason in Reason},
    **{f"{name}Key": key for key, name in _LABEL_NAMES.items()},
    **{f"{name}Value": _value(LABELS[key]) for key, name in _LABEL_NAMES.items()},
    **WORDS,
    **_DENIALS,
    "allowedValues": "{"
    + ", ".join(f"{literal(label.key)}: {literal(label.allowed)}" for label in LABELS.values())
    + "}",
    "aSize": literal(A_SIZE),
    # Keys of pods.
    "priorityKey": keys.PRIORITY_LABEL,
    "containerNameKey": keys.CONTAINER_NAME,
    "gpuFraction": keys.GPU_FRACTION,
    "gpuMemory": keys.GPU_MEMORY,
    "numDevices": keys.NUM_DEVICES,
    "injectKey": own_labels.INJECT,
    "gpuMarkKey": own_labels.GPU_MARK,
    "gpuShared": own_labels.GPU_SHARED,
    "wholeGpuKey": own_labels.WHOLE_GPU,
    "sizeKey": own_labels.SIZE,
    "reasonKey": own_labels.REASON,
    "queuePath": escape(keys.QUEUE_LABEL),
    "priorityPath": escape(keys.PRIORITY_LABEL),
    "containerNamePath": escape(keys.CONTAINER_NAME),
    "sizePath": escape(own_labels.SIZE),
    "reasonPath": escape(own_labels.REASON),
    "shareAnnotations": cel_list(SHARE_ANNOTATIONS),
    "isContainerMemoryKey": is_container_memory_key("key"),
    # Names.
    "kaiScheduler": keys.SCHEDULER_NAME,
    "defaultScheduler": keys.DEFAULT_SCHEDULER,
    "gpuTaint": keys.GPU_TAINT,
    "toleration": "{" + ", ".join(f"'{key}': '{value}'" for key, value in TOLERATION.items()) + "}",
    # GPU resources.
    "gpu": keys.GPU_RESOURCE,
    "gpuPath": escape(keys.GPU_RESOURCE),
    "migPrefix": keys.MIG_PREFIX,
    "deviceClassPrefix": DEVICE_CLASS_PREFIX,
    "namesGpu": names_gpu("name"),
    "quantityForm": pattern(quantity.FORM),
    "mostGpuContainers": str(MOST_GPU_CONTAINERS),
    "mostGpuKeys": str(2 * MOST_GPU_CONTAINERS),
    # Sizes.
    "sizePrefix": own_labels.SIZE_PREFIX,
    "sizeNameForm": pattern(own_labels.SIZE_NAME_FORM),
    "longestSizeName": str(own_labels.LONGEST_SIZE_NAME),
    "mostSizes": str(MOST_SIZES),
    "mibOfSize": _MIB_OF_SIZE,
    "isSizeAmount": _IS_SIZE_AMOUNT,
    "isSizeAboveEditedCap": _IS_SIZE_ABOVE_EDITED_CAP,
    "sizePrefixLength": str(len(own_labels.SIZE_PREFIX)),
    "longestSizeKey": str(len(own_labels.SIZE_PREFIX) + own_labels.LONGEST_SIZE_NAME),
    "wholeSize": WHOLE,
    # Labels of namespaces.
    "hasOwnPrefix": starts_with("key", [own_labels.PREFIX, own_labels.SIZE_PREFIX]),
    "isMode": has_form(f"variables.namespaceLabels['{own_labels.MODE}']", LABELS[own_labels.MODE].form),
    "isInvalidLabel": _is_invalid_label(),
    # What enforce refuses.
    "isDaemonSet": "owner.kind == 'DaemonSet' && owner.apiVersion.startsWith('apps/')",
    "byDaemonSets": f"request.userInfo.username in {cel_list(sorted(DAEMON_SET_CONTROLLERS))}",
    "mirrorKey": keys.MIRROR_POD,
    "isOfKai": is_of_kai("key"),
    "userKeys": cel_list(FREE_KEYS + CREATION_KEYS),
    "userPrefixes": cel_list(USER_PREFIXES),
    "vclusterPrefix": keys.VCLUSTER_PREFIX,
    "managedByKey": keys.VCLUSTER_MANAGED_BY,
    "appKey": keys.APP_LABEL,
    "reservedApps": cel_list(RESERVED_APPS),
    "configMapKey": keys.SHARED_GPU_CONFIGMAP,
    "configMapForm": pattern(CONFIG_MAP_FORM),
    "configMapEnding": str(CONFIG_MAP_ENDING),
    "shortenedName": str(SHORTENED_NAME),
    "portionVariable": keys.GPU_PORTION_ENV,
    "containerPrefix": keys.CONTAINER_PREFIX,
    "containerMemory": CONTAINER_MEMORY,
    "memoryRequest": CONTAINER_MEMORY_SUFFIXES[0],
    "memoryLimit": CONTAINER_MEMORY_SUFFIXES[1],
    "mib": f"{MIB}.0",
    "rounding": f"{ROUNDING:.9f}",
    # Bounds.
    "isSmallPod": bounds.IS_SMALL_POD,
    "isSmallNamespace": bounds.IS_SMALL_NAMESPACE,
    "mostOfNamespace": str(bounds.MOST_OF_NAMESPACE),
    "mostKeys": str(bounds.MOST_KEYS),
    "mostOwners": str(bounds.MOST_OWNERS),
    "mostContainers": str(bounds.MOST_CONTAINERS),
    "mostEntries": str(bounds.MOST_ENTRIES),
    "mostSorted": str(bounds.MOST_SORTED),
    # Evidence of distributed jobs.
    "rankVariables": cel_list(row.name for row in _RANK_ROWS),
    "rankTexts": ", ".join(map(_variable, distributed.VARIABLES)),
    "rankForm": pattern(distributed.NUMBER_FORM),
    "longestNumber": str(distributed.LONGEST_NUMBER),
    "longestCommandLine": str(LONGEST_COMMAND_LINE),
    "mostRanks": str(distributed.MOST_RANKS),
    "jaxJob": distributed.JAX_JOB,
    "jaxProcesses": _variable(distributed.JAX_PROCESSES),
    "clusterText": _variable(distributed.CLUSTER),
    "rendezvous": cel_list(row.name for row in distributed.RENDEZVOUS),
    "trainingGroup": distributed.TRAINING_GROUP.replace(".", "[.]"),
    "trainingJobs": cel_list(sorted(distributed.TRAINING_JOBS)),
    "mpiJob": distributed.MPI_JOB.name,
    "mpiOperatorKey": distributed.MPI_OPERATOR.name,
    "mpiOperator": distributed.MPI_OPERATOR_NAME,
    "lwsSize": distributed.LWS_SIZE.name,
    "kueueGroup": distributed.KUEUE_GROUP,
    "kueueServing": distributed.KUEUE_SERVING,
    "kueueCount": distributed.KUEUE_COUNT.name,
    "jobSetKeys": cel_list(row.name for row in distributed.JOB_SET),
    "torchPrograms": "|".join(distributed.TORCH_PROGRAMS).replace(".", "[.]"),
    "nodesOption": distributed.NODES_OPTION.name + "?",
}
