"""Numbers as Java reads them; `test_sql_filter` has the tables of odd strings with RocketMQ's own answers."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput.filter import FilterEvaluationError
from reput.filter.java_numbers import double_is_less, int_or, long_or, read_double, read_int, read_long


@pytest.mark.slow
@pytest.mark.newest_python
@given(st.integers(-(2**31), 2**31 - 1))
def test_an_int_is_read_back(value):
    """Every number of 32 bits, with any sign."""
    assert read_int(str(value)) == value
    assert read_int(f"{value:+d}") == value


@pytest.mark.parametrize(
    ("read", "bits"), [pytest.param(read_int, 32, id="int"), pytest.param(read_long, 64, id="long")]
)
def test_an_integer_out_of_range_is_refused(read, bits):
    """The bounds themselves are in range."""
    assert read(str(2 ** (bits - 1) - 1)) == 2 ** (bits - 1) - 1
    assert read(str(-(2 ** (bits - 1)))) == -(2 ** (bits - 1))
    for beyond in (2 ** (bits - 1), -(2 ** (bits - 1)) - 1):
        with pytest.raises(FilterEvaluationError):
            read(str(beyond))


@pytest.mark.parametrize("text", ["0" * 9000 + "7", "+" + "0" * 50 + "7", "０７", "٧"])
def test_digits_of_any_script_and_any_number_of_zeros_are_an_integer(text):
    """Java limits neither."""
    assert read_int(text) == int_or(text, 1) == long_or(text, 1) == 7
    assert int_or(None, 1) == long_or(None, 1) == 1


@pytest.mark.parametrize(
    "text",
    ["", "+", "-", "--1", " 1", "1 ", "1_0", "1.0", "1e3", "0x1", "10L", "½", "²", "𝟏", "9" * 9000, "-" + "9" * 50],
)
def test_what_is_no_integer_is_refused(text):
    """Python would accept some of them."""
    with pytest.raises(FilterEvaluationError, match="type=int"):
        read_int(text)
    assert (int_or(text, -5), long_or(text, -5)) == (-5, -5)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1.0),
        ("\x001.5\t ", 1.5),
        ("5.", 5.0),
        (".5f", 0.5),
        ("1e3D", 1000.0),
        ("+Infinity", math.inf),
        ("-1e400", -math.inf),
        ("1e-400", 0.0),
        ("0x1p3", 8.0),
        ("-0X.8P-1f", -0.25),
        ("0x1.p99999999999", math.inf),
        ("-0x1p9999", -math.inf),
        ("0x0p99999999999", 0.0),
        ("9007199254740993", 9007199254740992.0),
    ],
)
def test_a_double_is_read_as_java_reads_it(text, value):
    """Including blanks, suffixes and hexadecimal numbers."""
    assert read_double(text) == value


def test_not_a_number_is_a_double():
    """With a sign too, but not with a suffix."""
    assert math.isnan(read_double("-NaN"))
    for text in ("NaNf", "Infinityd"):
        with pytest.raises(FilterEvaluationError, match="type=double"):
            read_double(text)


@pytest.mark.parametrize(
    "text", ["", ".", "e5", "5e", "nan", "inf", "infinity", "1_000", "1,5", "10L", "0x10", "0xp1", "１", "1 2", "\xa01"]
)
def test_what_is_no_double_is_refused(text):
    """Python would accept some of them."""
    with pytest.raises(FilterEvaluationError, match="type=double"):
        read_double(text)


def test_a_long_value_is_shortened_in_the_error():
    """A property may have 32 KiB; a line of a log should not."""
    with pytest.raises(FilterEvaluationError) as caught:
        read_int("x" * 30_000)
    assert len(str(caught.value)) < 250


def test_doubles_have_a_total_order():
    """-0.0 comes before 0.0, and NaN after everything."""
    ordered = [-math.inf, -1.5, -0.0, 0.0, 5e-324, math.inf, math.nan]
    for left, right in pairwise(ordered):
        assert double_is_less(left, right)
        assert not double_is_less(right, left)
    for value in ordered:
        assert not double_is_less(value, value)
