"""Tables of text fit a number of columns."""

from hypothesis import given
from hypothesis import strategies as st

from console.text_table import column_widths, natural_widths, table_lines
from service.text import one_line, width

CELLS = st.text(max_size=40).map(one_line)


@given(
    st.lists(st.lists(CELLS, min_size=3, max_size=3), min_size=1, max_size=5),
    st.lists(st.integers(min_value=0, max_value=10), min_size=3, max_size=3),
    st.integers(min_value=10, max_value=140),
)
def test_a_table_fits_or_has_no_widths(rows: list[list[str]], least: list[int], columns: int) -> None:
    natural = [max(map(width, column)) for column in zip(*rows, strict=True)]
    assert natural_widths(rows) == natural
    widths = column_widths(rows, columns, least)
    smallest = [min(own, small) if small else own for own, small in zip(natural, least, strict=True)]
    assert (widths is None) is (sum(smallest) + 4 > columns)
    if widths is None:
        return
    lines = list(table_lines(rows, widths))
    assert max(map(width, lines)) <= columns
    for own, small, chosen in zip(natural, least, widths, strict=True):
        assert chosen == own or (small and small <= chosen < own)


def test_the_widest_columns_give_way_first() -> None:
    rows = [("NAME", "QUEUE", "N"), ("a-very-long-name", "a-queue", "10")]
    assert column_widths(rows, 100, (4, 4, 0)) == [16, 7, 2]
    assert column_widths(rows, 20, (4, 4, 0)) == [7, 7, 2]
    assert column_widths(rows, 13, (4, 4, 0)) is None
    assert list(table_lines(rows, [7, 7, 2])) == ["NAME     QUEUE    N", "a-v…ame  a-queue  10"]
