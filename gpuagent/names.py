"""The form of the names of Kubernetes objects."""

import re

_OBJECT_NAME = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")


def may_name_object(text: str) -> bool:
    """Whether a text has the characters and the length of a DNS-1123 subdomain, the name of most objects."""
    return _OBJECT_NAME.fullmatch(text) is not None
