"""The documentation's tables are the code's."""

import re
from pathlib import Path

import pytest

from docs.tables import TABLES, written
from kai.kaishare_keys import POD_KEYS
from webhook.policy.reasons import Reason

ROOT = Path(__file__).parents[2]
PAGES = ("policy.md", "guard.md", "install.md", "runbooks.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_table_is_up_to_date(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert "<!-- table: " in text
    assert written(text) == text, "run `make docs`"


def test_every_table_is_on_a_page() -> None:
    texts = [(ROOT / "docs" / page).read_text(encoding="utf-8") for page in PAGES]
    assert {name for text in texts for name in re.findall(r"<!-- table: ([a-z-]+) -->", text)} == set(TABLES)


def test_every_reason_is_documented() -> None:
    text = (ROOT / "docs" / "policy.md").read_text(encoding="utf-8")
    for reason in Reason:
        assert f"| `{reason.code}` | " in text
    for key in POD_KEYS:
        assert key in text


def test_a_table_without_a_writer_is_an_error() -> None:
    with pytest.raises(KeyError):
        written("<!-- table: nonsense -->\n<!-- end -->")
