"""Go's number parsers and Kubernetes quantities."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kai.numbers import is_quantity, parse_float, parse_int, parse_quantity, parse_uint


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.5", 0.5), (".5", 0.5), ("0.", 0.0), ("+0.5", 0.5), ("-0", -0.0), ("00.5", 0.5), ("5E-1", 0.5),
        ("0x1p-1", 0.5), ("0X.8P0", 0.5), ("0x_1p-1", 0.5), ("0.5_0", 0.5), ("1_0e1_0", 10e10), ("1e-400", 0.0),
        ("inf", math.inf), ("+Infinity", math.inf), ("-INF", -math.inf), ("0_5", 5.0),
    ],
)  # fmt: skip
def test_float_go_accepts(text: str, value: float) -> None:
    assert parse_float(text) == value


@pytest.mark.parametrize(
    "text",
    ["", " 0.5", "0.5 ", "0,5", "50%", "0.5f", "1e", "e1", ".", "+", "_1", "1_", "1__0", "0._5", "0x1", "0x.p1",
     "+nan", "infin", "٠.٥", "1e400", "0x1p9999", "1/2", "0.5\n", "9" * 1000],
)  # fmt: skip
def test_float_go_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_float(text)


def test_nan_is_a_number_to_go() -> None:
    assert math.isnan(parse_float("NaN"))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_float_survives(value: float) -> None:
    assert parse_float(repr(value)) == value
    assert parse_float(value.hex()) == value


def test_integers_at_their_edges() -> None:
    assert parse_uint("18446744073709551615") == (1 << 64) - 1
    assert parse_uint("02000") == 2000
    assert parse_int("-9223372036854775808") == -(1 << 63)
    assert parse_int("+7") == 7
    for parse, text in [
        (parse_uint, "18446744073709551616"), (parse_uint, "+1"), (parse_uint, "1_0"), (parse_uint, "٣"),
        (parse_int, "9223372036854775808"), (parse_int, "--1"), (parse_int, ""), (parse_int, "1.0"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=r".+"):
            parse(text)


@pytest.mark.parametrize(
    ("value", "amount"),
    [("1", 1), (1, 1), (1.0, 1), ("1000m", 1), ("2k", 2000), ("1e3", 1000), ("1E3", 1000), ("2Gi", 2 << 30),
     ("+.5", Fraction(1, 2)), ("-1", -1), ("1.", 1), ("5n", Fraction(5, 10**9)), ("1E", 10**18)],
)  # fmt: skip
def test_quantity(value: object, amount: Fraction | int) -> None:
    assert parse_quantity(value) == amount


@pytest.mark.parametrize(
    "value", ["", "1 ", "one", "0x10", "1_0", "NaN", True, None, [], {}, "1e999999999", "9" * 99]
)
def test_no_quantity(value: object) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_quantity(value)


def test_is_quantity_takes_any_exponent() -> None:
    assert is_quantity("1e999999999")
    assert not is_quantity("nan")
