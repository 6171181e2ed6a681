"""The syntax of names."""

from collections.abc import Callable

import pytest

from service.names import is_dns_label, is_dns_subdomain, is_label_key, is_label_value

CASES = [
    (is_dns_label, ("a", "0", "a-1", "a" * 63), ("", "-a", "a-", "a.b", "A", "ä", "a\n", "a" * 64)),
    (is_dns_subdomain, ("a", "a.b", "a-1.0", "a" * 253), ("", ".a", "a.", "a..b", "a-.b", "a.-b", "A", "a_b", "a" * 254)),
    (is_label_value, ("", "a", "A.b_C-0", "a" * 63), ("-a", "a.", "a/b", "a b", "ä", "a" * 64)),
    (is_label_key, ("a", "A_b", "a.example/B", "a" * 253 + "/" + "b" * 63), ("", "/", "a/", "/a", "A/b", "a/b/c", "a./b", "a/" + "b" * 64)),
]  # fmt: skip


@pytest.mark.parametrize(("check", "valid", "invalid"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_name_syntax(check: Callable[[str], bool], valid: tuple[str, ...], invalid: tuple[str, ...]) -> None:
    assert [text for text in valid if not check(text)] == []
    assert [text for text in invalid if check(text)] == []
