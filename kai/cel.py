"""Writes rules of this package as expressions of CEL, the language of the API server's admission policies."""

from collections.abc import Iterable

from kai import keys
from kai.gpu_resources import (
    DEVICE_CLASS_PREFIX,
    GPU_SUFFIXES,
    HARMLESS_PARTS,
    HARMLESS_PREFIXES,
    HARMLESS_SUFFIXES,
    KUBERNETES_DOMAIN,
    NVIDIA_PREFIX,
    OTHER_DEVICES,
)
from kai.key_classes import KAI_NAMES, KAI_PREFIXES
from kai.share import CONTAINER_MEMORY, CONTAINER_MEMORY_AT, CONTAINER_MEMORY_SUFFIXES


def literal(text: str) -> str:
    """Return a text as a CEL string."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def cel_list(texts: Iterable[str]) -> str:
    """Return a CEL list of strings."""
    return "[" + ", ".join(map(literal, texts)) + "]"


def is_of_kai(text: str, *more_prefixes: str) -> str:
    """Return the expression for: a label or annotation of this name belongs to KAI, or has a further prefix.

    A regular expression would cost ten times as much, and exceed the API server's limit for many long keys.
    """
    return f"{text} in {cel_list(KAI_NAMES)} || {starts_with(text, (*KAI_PREFIXES, *more_prefixes))}"


def starts_with(text: str, prefixes: Iterable[str]) -> str:
    """Return the expression for: the text begins with one of the prefixes."""
    return " || ".join(f"{text}.startsWith({literal(prefix)})" for prefix in prefixes)


def ends_with(text: str, suffixes: Iterable[str]) -> str:
    """Return the expression for: the text ends with one of the suffixes."""
    return " || ".join(f"{text}.endsWith({literal(suffix)})" for suffix in suffixes)


def names_gpu(name: str) -> str:
    """Return the expression for `kai.gpu_resources.names_gpu`."""
    return (
        f"({starts_with(name, [NVIDIA_PREFIX])} && !({starts_with(name, OTHER_DEVICES)})"
        f" || {starts_with(name, [DEVICE_CLASS_PREFIX])}"
        f" || {ends_with(name, GPU_SUFFIXES)})"
    )


def may_be_accelerator(name: str) -> str:
    """Return the expression for `kai.gpu_resources.may_be_accelerator` of a name with a slash."""
    domain = f"{name}.split('/')[0]"
    return (
        f"({starts_with(name, [DEVICE_CLASS_PREFIX])}"
        f" || {domain} != {literal(KUBERNETES_DOMAIN)}"
        f" && !{domain}.endsWith({literal(f'.{KUBERNETES_DOMAIN}')})"
        f" && !({starts_with(name, HARMLESS_PREFIXES)} || {ends_with(name, HARMLESS_SUFFIXES)}"
        f" || {' || '.join(f'{name}.contains({literal(part)})' for part in HARMLESS_PARTS)}))"
    )


def is_container_memory_key(key: str) -> str:
    """Return the expression for `kai.share.is_container_memory_key`."""
    return (
        f"({starts_with(key, [keys.CONTAINER_PREFIX])} && ({ends_with(key, CONTAINER_MEMORY_SUFFIXES)})"
        f" && {key}.lastIndexOf({literal(CONTAINER_MEMORY)}) >= {CONTAINER_MEMORY_AT})"
    )
