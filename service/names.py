"""The syntax of names and labels of Kubernetes objects (apimachinery, pkg/util/validation). Pure."""

import re
from typing import Final

LONGEST_LABEL: Final = 63  # maximum length of a DNS-1123 label and of a label's value, in characters
LONGEST_SUBDOMAIN: Final = 253
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
SUBDOMAIN_FORM: Final = _SUBDOMAIN.pattern
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_KIND = re.compile(r"[A-Za-z][A-Za-z0-9]{0,62}")
_GPU_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._()/+-]{0,99}")


def is_dns_label(text: str) -> bool:
    """Whether a text is a DNS-1123 label, such as the name of a namespace: a-z, 0-9 and -."""
    return len(text) <= LONGEST_LABEL and _LABEL.fullmatch(text) is not None


def is_dns_subdomain(text: str) -> bool:
    """Whether a text is a DNS-1123 subdomain, such as the name of a pod: labels of any length with dots."""
    return len(text) <= LONGEST_SUBDOMAIN and _SUBDOMAIN.fullmatch(text) is not None


def is_label_key(text: str) -> bool:
    """Whether a text is the key of a label or annotation: a name, or a DNS subdomain, a slash and a name."""
    prefix, slash, name = text.rpartition("/")
    return bool(name) and is_label_value(name) and (not slash or is_dns_subdomain(prefix))


def is_label_value(text: str) -> bool:
    """Whether a text is the value of a label; it may be empty."""
    return not text or (len(text) <= LONGEST_LABEL and _QUALIFIED.fullmatch(text) is not None)


def is_kind(text: str) -> bool:
    """Whether a text is the kind of an object, such as `Deployment`."""
    return _KIND.fullmatch(text) is not None


def is_gpu_model(text: str) -> bool:
    """Whether a text is the name of a model of GPU as NVML reports it, such as `NVIDIA A100-SXM4-80GB`."""
    return _GPU_MODEL.fullmatch(text) is not None
