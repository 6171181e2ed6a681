"""Impersonation by a kubeconfig: `as`, `as-uid`, `as-groups` and `as-user-extra` as request headers.

The form is that of client-go (transport/round_trippers.go, NewImpersonatingRoundTripper).
"""

import string
from collections.abc import Iterator
from typing import Final

from kube.kubeconfig import KubeconfigEntry, UserEntry

_TOKEN_BYTES: Final = frozenset((string.ascii_letters + string.digits + "!#$&'*+-.^_`|~").encode())
"""Bytes of a header's name (RFC 9110, 5.6.2), without the percent sign."""


def is_header_value(text: str) -> bool:
    """Whether a header can carry the text: no control characters but tabs, and no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return all(char == "\t" or (char >= " " and char != "\x7f") for char in text)


def impersonation_headers(user: KubeconfigEntry[UserEntry]) -> list[tuple[str, str]]:
    """Return the headers of an impersonation, one for each group and each extra value; empty for none.

    Raises:
        InvalidKubeconfig: `as` is missing, or no header can carry a value.
    """
    values = user.value
    groups = [group or "" for group in values.as_groups or ()]
    extra = [(key, value or "") for key, many in (values.as_user_extra or {}).items() for value in many or ()]
    if not values.as_user:
        if values.as_uid or groups or values.as_user_extra:
            raise user.error("as-uid, as-groups and as-user-extra need as, the user to impersonate")
        return []
    headers = list(_headers(values.as_user, values.as_uid or "", groups, extra))
    keys = ["as", *(["as-uid"] if values.as_uid else []), *["as-groups"] * len(groups)]
    keys += ["as-user-extra"] * len(extra)
    for key, (_, value) in zip(keys, headers, strict=True):
        if not is_header_value(value):
            raise user.error(f"{key}: a line break or another character that no header can carry")
        if value != value.strip(" \t"):  # HTTP/1.1 drops them, and the API server would see another user
            raise user.error(f"{key}: a blank at the beginning or end of a value")
    return headers


def _headers(
    name: str, uid: str, groups: list[str], extra: list[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    yield "Impersonate-User", name
    if uid:
        yield "Impersonate-Uid", uid
    for group in groups:
        yield "Impersonate-Group", group
    for key, value in extra:
        yield f"Impersonate-Extra-{_escaped(key)}", value


def _escaped(key: str) -> str:
    """Return a key of `as-user-extra` as part of a header's name: percent-encoded and in lower case."""
    encoded = key.encode(errors="replace")
    return "".join(chr(byte) if byte in _TOKEN_BYTES else f"%{byte:02X}" for byte in encoded).lower()
