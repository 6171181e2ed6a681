"""Impersonation by a kubeconfig: `as`, `as-uid`, `as-groups` and `as-user-extra` as request headers.

The form is that of client-go (transport/round_trippers.go, NewImpersonatingRoundTripper).
"""

from typing import Final
from urllib.parse import quote

from kube.kubeconfig import KubeconfigEntry, UserEntry

_NAME_CHARACTERS: Final = "!#$&'*+-.^_`|~"
"""Characters of a header's name beside letters and digits (RFC 9110, 5.6.2), without the percent sign."""


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
        AccessError: `as` is missing, or no header can carry a value.
    """
    values = user.value
    if not values.as_user:
        if values.as_uid or values.as_groups or values.as_user_extra:
            raise user.error("as-uid, as-groups and as-user-extra need as, the user to impersonate")
        return []
    headers = [("as", "Impersonate-User", values.as_user)]
    if values.as_uid:
        headers.append(("as-uid", "Impersonate-Uid", values.as_uid))
    headers += [("as-groups", "Impersonate-Group", group or "") for group in values.as_groups or ()]
    headers += [
        ("as-user-extra", f"Impersonate-Extra-{_escaped(name)}", value or "")
        for name, extra in (values.as_user_extra or {}).items()
        for value in extra or ()
    ]
    for key, _, value in headers:
        if not is_header_value(value):
            raise user.error(f"{key}: a line break or another character that no header can carry")
        if value != value.strip(" \t"):  # HTTP/1.1 drops them, and the API server would see another user
            raise user.error(f"{key}: a blank at the beginning or end of a value")
    return [(header, value) for _, header, value in headers]


def _escaped(name: str) -> str:
    """Return a key of `as-user-extra` as part of a header's name: percent-encoded and in lower case."""
    return quote(name, safe=_NAME_CHARACTERS, errors="replace").lower()
