"""Fields of a custom header as numbers, truths and text."""

from __future__ import annotations

import pytest

from reput.errors import RequestRefused
from reput.remoting.custom_header import optional_whole, text, truth, whole


@pytest.mark.parametrize("number", [0, -1, 2**31 - 1, -(2**31)])
def test_numbers_of_32_bits(number):
    """As text, within their bounds."""
    assert whole({"n": str(number)}, "n") == number


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63)])
def test_numbers_of_64_bits(number):
    """Only where the field is a long."""
    assert whole({"n": str(number)}, "n", is_long=True) == number
    with pytest.raises(RequestRefused):
        whole({"n": str(number)}, "n")


@pytest.mark.parametrize(
    "value", ["", "x", "1.5", "1_000", "٣", str(2**31), str(2**63), "9" * 10_000_000, "0x10", "1e3", "null"]
)
def test_no_number_is_refused_with_the_name_of_its_field(value):
    """Code 1 and a short text, however long the value is."""
    with pytest.raises(RequestRefused, match="<n>") as caught:
        whole({"n": value}, "n")
    assert len(str(caught.value)) < 300


def test_a_missing_field_is_refused_with_its_name():
    """As RocketMQ says it."""
    with pytest.raises(RequestRefused, match="the custom field <n> is null"):
        text({}, "n")
    with pytest.raises(RequestRefused, match="the custom field <n> is null"):
        whole({}, "n")


def test_a_field_that_may_be_missing_has_a_default():
    """One that is there must be a number."""
    assert optional_whole({}, "n", 7) == 7
    assert optional_whole({"n": "3"}, "n", 7) == 3
    with pytest.raises(RequestRefused):
        optional_whole({"n": "x"}, "n", 7)


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("TRUE", True), ("false", False), ("1", False)])
def test_truths_are_as_java_reads_them(value, expected):
    """All but "true" is false."""
    assert truth({"b": value}, "b", not expected) is expected
    assert truth({}, "b", expected) is expected
