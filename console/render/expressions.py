"""What stands for each `${NAME}` in policies/: keys, forms, lists and bounds from the code's tables.

An expression over a list or a map takes the API server quadratic time (on Kubernetes 1.36.3 26 s for 70,000
labels). A pod beyond these bounds is left unchanged, and the edit of a namespace beyond them is not judged,
without any work.
"""

from collections.abc import Mapping
from dataclasses import fields
from string import Formatter
from typing import Final

from kai import command_lines, gpu_resources, kaishare_keys, key_classes, keys, numbers, share
from kai.cel import (
    cel_list,
    is_container_memory_key,
    is_of_kai,
    literal,
    may_be_accelerator,
    names_gpu,
    starts_with,
)
from kai.kaishare_keys import REASON
from webhook.policy import checks, decide_share, distributed, plain_gpu, sizes
from webhook.policy.label_values import FRACTION_FORM, MIB_FORM, MOST_MIB
from webhook.policy.labels import LABELS, NamespacePolicy, PolicyLabel
from webhook.policy.patch import TOLERATION, escape
from webhook.policy.reasons import Reason
from webhook.policy.verify import DAEMON_SET_CONTROLLERS

MOST_KEYS: Final = 1000  # labels, annotations, or tolerations of a pod
MOST_OF_NAMESPACE: Final = 2500  # labels, or annotations, of a namespace
_WRITTEN: Final = 10  # more than what the policy and a LimitRange add to them before a reinvocation
MOST_SORTED: Final = 500
"""Sizes of a namespace that are sorted to find the first ones; 800 would exceed the API server's budget."""
MOST_OWNERS: Final = 100
MOST_CONTAINERS: Final = 1000
MOST_ENTRIES: Final = 5000
"""Limits, requests, environment variables and words of the commands of a pod's containers together."""

_LISTS: Final = "[object.spec.containers, object.spec.?initContainers.orValue([])]"
IS_SMALL_POD: Final = (
    "[size(object.metadata.?labels.orValue({})), size(object.metadata.?annotations.orValue({})),"
    " size(object.spec.?tolerations.orValue([]))].all(entries, entries <="
    f" (object.metadata.?annotations[?{literal(REASON)}].hasValue() ? {MOST_KEYS + _WRITTEN} : {MOST_KEYS}))"
    f" && size(object.metadata.?ownerReferences.orValue([])) <= {MOST_OWNERS}"
    f" && {_LISTS}.all(list, size(list) <= {MOST_CONTAINERS} && list.map(c,"
    " size(c.?resources.?limits.orValue({})) + size(c.?resources.?requests.orValue({}))"
    " + size(c.?env.orValue([])) + size(c.?command.orValue([])) + size(c.?args.orValue([]))"
    f").sum() <= {MOST_ENTRIES})"
)
"""The CEL expression for: the pod is within the bounds."""
IS_SMALL_NAMESPACE: Final = (
    "[object, oldObject].all(version, version == null"
    " || [version.metadata.?labels, version.metadata.?annotations].all(entries,"
    f" size(entries.orValue({{}})) <= {MOST_OF_NAMESPACE}))"
)
"""The CEL expression for: the namespace is within the bounds, before and after an edit."""


def pattern(form: str) -> str:
    """Return a regular expression that matches the whole text, as the inside of a CEL string."""
    return literal(f"^(?:{form})$")[1:-1]


def has_form(text: str, form: str | tuple[str, ...]) -> str:
    """Return the CEL expression for: the text has the form of a label's value."""
    if isinstance(form, tuple):
        return f"{text} in {cel_list(form)}"
    fits = f"{text}.matches('{pattern(form)}')"
    if form == kaishare_keys.GRACE_PATTERN:
        return f"{fits} && {_is_grace(text)}"
    if form != MIB_FORM:
        return fits
    largest = str(MOST_MIB)  # texts of equal length are in the order of their numbers
    return f"{fits} && (size({text}) < {len(largest)} || {text} <= '{largest}')"


def _map(entries: Mapping[str, str]) -> str:
    """Return a CEL map; the values are expressions."""
    return "{" + ", ".join(f"{literal(key)}: {value}" for key, value in entries.items()) + "}"


def _is_grace(text: str) -> str:
    """Return the expression for: a number and a unit are a time within the bounds of the label."""
    number, unit = f"int({text}.substring(0, size({text}) - 1))", f"{text}.substring(size({text}) - 1)"
    units = _map({name: str(seconds) for name, seconds in kaishare_keys.GRACE_UNITS.items()})
    seconds = f"{number} * {units}[{unit}]"
    return f"{seconds} >= {kaishare_keys.SHORTEST_GRACE} && {seconds} <= {kaishare_keys.LONGEST_GRACE}"


_ABSENT: Final[Mapping[str, object]] = {field.name: field.default for field in fields(NamespacePolicy)}


def _value(label: PolicyLabel) -> str:
    """Return what follows a map of labels: the value of one of them if it is allowed, else its default."""
    absent = _ABSENT.get(label.field)
    default = literal(absent) if isinstance(absent, str) else "''"
    if label.key == kaishare_keys.MODE:
        default = "variables.defaultMode"
    value = f"{has_form('value', label.form)} ? optional.of(value) : optional.none()"
    return f"[?'{label.key}'].optFlatMap(value, {value}).orValue({default})"


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
    return f"({' : '.join(cases)} : {starts_with('key', [kaishare_keys.PREFIX])})"


_SIZE_NUMBER: Final = "int(text.substring(0, size(text) - 2))"
_SIZE_UNITS: Final = " : ".join(
    f"text.endsWith('{unit}') ? ({_SIZE_NUMBER} <= {MOST_MIB // mib} ? {_SIZE_NUMBER} * {mib} : 0)"
    for unit, mib in sizes.MIB_PER_UNIT.items()
)
_MIB_OF_SIZE: Final = f"(!text.matches('{pattern(sizes.SIZE_MEMORY_FORM)}') ? 0 : {_SIZE_UNITS} : 0)"
"""The expression for: the MiB of the size `text`; 0 if it has another form or is too large."""
_IS_FRACTION: Final = f"(text == '{sizes.WHOLE}' || text.matches('{pattern(FRACTION_FORM)}'))"
_IS_SIZE_AMOUNT: Final = (
    f"({_MIB_OF_SIZE} > 0 ? (variables.maxMemory != '' ? {_MIB_OF_SIZE} <= int(variables.maxMemory)"
    " : variables.maxFraction == '')"
    f" : {_IS_FRACTION}"
    " && (variables.maxFraction != '' ? double(text) <= double(variables.maxFraction)"
    " : variables.maxMemory == ''))"
)
"""The expression for: the value `text` of a size is allowed, and within the namespace's caps."""

_EDITS_CAP: Final = "(variables.editsMaxFraction || variables.editsMaxMemory)"
_IS_SIZE_ABOVE_EDITED_CAP: Final = (
    f"({_MIB_OF_SIZE} > 0 ? (variables.maxMemory != ''"
    f" ? variables.editsMaxMemory && {_MIB_OF_SIZE} > int(variables.maxMemory)"
    f" : variables.maxFraction != '' && {_EDITS_CAP})"
    f" : {_IS_FRACTION} && (variables.maxFraction != ''"
    " ? variables.editsMaxFraction && double(text) > double(variables.maxFraction)"
    f" : variables.maxMemory != '' && {_EDITS_CAP}))"
)
"""The expression for: a cap that the request edits does not allow the size `text`, or cannot be compared."""
_RANK_ROWS: Final = (*distributed.VARIABLES, distributed.JAX_PROCESSES, distributed.CLUSTER)


def _camel(name: str) -> str:
    head, *rest = name.lower().split("_")
    return head + "".join(map(str.capitalize, rest))


_READ: Final = (
    "MODE", "SCHEDULER", "PRIORITY", "TOLERATION", "DISTRIBUTED", "SHARE_FOR", "MAX_FRACTION", "MAX_MEMORY",
    "FRACTION", "MEMORY", "VCLUSTER",
)  # fmt: skip
_LABEL_NAMES: Final[Mapping[str, str]] = {
    **{vars(kaishare_keys)[name]: _camel(name) for name in _READ},
    keys.QUEUE_LABEL: "queue",
}
"""The labels that a decision reads, with the names of their variables."""

_SIZES: Final = (
    f"variables.namespaceLabels.filter(key, key.startsWith('{kaishare_keys.SIZE_PREFIX}'))"
    f".map(key, key.substring({len(kaishare_keys.SIZE_PREFIX)}))"
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
        f" : size(variables.namespaceLabels) > {MOST_KEYS} ? 'its sizes are labels of the namespace'"
        f" : 'sizes: ' + {_SIZES}.join(', '))",
    ),
    "invalidSize": sentence(
        Reason.POLICY_INVALID, problem="'label ' + variables.sizeLabel + ' is not a size that pods can get'"
    ),
    "aboveMaxFraction": sentence(
        Reason.ABOVE_CAP, amount=_GPUS, cap=f"variables.maxFraction + ' ({kaishare_keys.MAX_FRACTION})'"
    ),
    "aboveMaxMemory": sentence(
        Reason.ABOVE_CAP, amount=_MIB, cap=f"variables.maxMemory + ' MiB ({kaishare_keys.MAX_MEMORY})'"
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

_IS_MIG_KEY: Final = (
    f"{starts_with('key', plain_gpu.MIG_NODE_PREFIXES)} || key in {cel_list(plain_gpu.MIG_NODE_KEYS)}"
)

WORDS: Final[Mapping[str, str]] = {
    name + "".join(part.capitalize() for part in word.split("-")): word
    for key, name in _LABEL_NAMES.items()
    for word in (LABELS[key].form if isinstance(LABELS[key].form, tuple) else ())
}
"""The words that labels allow, such as `modeOff`."""

_MODULES: Final = (
    keys, kaishare_keys, command_lines, gpu_resources, share, checks, decide_share, distributed, plain_gpu,
    sizes,
)  # fmt: skip


CONSTANTS: Final[Mapping[str, str]] = {
    _camel(name): str(value)
    for names in (*map(vars, _MODULES), dict(globals()))
    for name, value in names.items()
    if name.isupper() and not name.startswith("_") and isinstance(value, str | int)
}
"""The numbers and texts of the code by their names in camel case: `gpuFraction` is GPU_FRACTION."""
VALUES: Final[Mapping[str, str]] = {
    **CONSTANTS,
    **{reason.name: literal(reason.code) for reason in Reason},
    **{f"{_camel(name)}Key": key for name, key in vars(kaishare_keys).items() if name.isupper()},
    **{f"{name}Value": _value(LABELS[key]) for key, name in _LABEL_NAMES.items()},
    **WORDS,
    **_DENIALS,
    "allowedValues": _map({label.key: literal(label.allowed) for label in LABELS.values()}),
    "aSize": literal(sizes.A_SIZE),
    # Keys of pods.
    "queuePath": escape(keys.QUEUE_LABEL),
    "priorityPath": escape(keys.PRIORITY_LABEL),
    "containerNamePath": escape(keys.CONTAINER_NAME),
    "sizePath": escape(kaishare_keys.SIZE),
    "reasonPath": escape(kaishare_keys.REASON),
    "shareAnnotations": cel_list(checks.SHARE_ANNOTATIONS),
    "isContainerMemoryKey": is_container_memory_key("key"),
    "toleration": _map({key: literal(value) for key, value in TOLERATION.items()}),
    # GPU resources.
    "gpuPath": escape(keys.GPU_RESOURCE),
    "namesGpu": names_gpu("name"),
    "mayBeAccelerator": may_be_accelerator("name"),
    "nvidiaRuntimeClasses": cel_list(plain_gpu.NVIDIA_RUNTIME_CLASSES),
    "isMigKey": _IS_MIG_KEY,
    "isOfMigNode": f"(key == '{keys.NODE_GPU_PRODUCT}' ? value.contains({literal(plain_gpu.MIG_PRODUCT)})"
    f" : !(value in {cel_list(plain_gpu.NOT_MIG_VALUES)}) && ({_IS_MIG_KEY}))",
    "quantityForm": pattern(numbers.FORM),
    "mostGpuKeys": str(2 * decide_share.MOST_GPU_CONTAINERS),
    # Sizes.
    "sizeNameForm": pattern(kaishare_keys.SIZE_NAME_FORM),
    "mibOfSize": _MIB_OF_SIZE,
    "isSizeAmount": _IS_SIZE_AMOUNT,
    "isSizeAboveEditedCap": _IS_SIZE_ABOVE_EDITED_CAP,
    "sizePrefixLength": str(len(kaishare_keys.SIZE_PREFIX)),
    "longestSizeKey": str(len(kaishare_keys.SIZE_PREFIX) + kaishare_keys.LONGEST_SIZE_NAME),
    "wholeSize": sizes.WHOLE,
    # Labels of namespaces.
    "hasOwnPrefix": starts_with("key", [kaishare_keys.PREFIX, kaishare_keys.SIZE_PREFIX]),
    "isMode": has_form(f"variables.namespaceLabels['{kaishare_keys.MODE}']", LABELS[kaishare_keys.MODE].form),
    "isInvalidLabel": _is_invalid_label(),
    # What enforce refuses.
    "isDaemonSet": "owner.kind == 'DaemonSet' && owner.apiVersion.startsWith('apps/')",
    "byDaemonSets": f"request.userInfo.username in {cel_list(sorted(DAEMON_SET_CONTROLLERS))}",
    "isOfKai": is_of_kai("key"),
    "userKeys": cel_list(key_classes.FREE_KEYS + key_classes.CREATION_KEYS),
    "userPrefixes": cel_list(key_classes.USER_PREFIXES),
    "reservedApps": cel_list(key_classes.RESERVED_APPS),
    "configMapForm": pattern(checks.CONFIG_MAP_FORM),
    "memoryRequest": share.CONTAINER_MEMORY_SUFFIXES[0],
    "memoryLimit": share.CONTAINER_MEMORY_SUFFIXES[1],
    "mib": f"{share.MIB}.0",
    "rounding": f"{checks.ROUNDING:.9f}",
    # Evidence of distributed jobs.
    "rankVariables": cel_list(row.name for row in (*_RANK_ROWS, *distributed.RENDEZVOUS)),
    "rankTexts": ", ".join(map(_variable, distributed.VARIABLES)),
    "rankForm": pattern(distributed.NUMBER_FORM),
    "jaxProcesses": _variable(distributed.JAX_PROCESSES),
    "clusterText": _variable(distributed.CLUSTER),
    "rendezvous": cel_list(row.name for row in distributed.RENDEZVOUS),
    "trainingGroup": distributed.TRAINING_GROUP.replace(".", "[.]"),
    "trainingJobs": cel_list(sorted(distributed.TRAINING_JOBS)),
    "mpiJob": distributed.MPI_JOB.name,
    "mpiOperatorKey": distributed.MPI_OPERATOR.name,
    "lwsSize": distributed.LWS_SIZE.name,
    "kueueCount": distributed.KUEUE_COUNT.name,
    "jobSetKeys": cel_list(row.name for row in distributed.JOB_SET),
    "torchPrograms": "|".join(distributed.TORCH_PROGRAMS).replace(".", "[.]"),
    "nodesOption": distributed.NODES_OPTION.name + "?",
}
