"""Details of RocketMQ's grammar; its answers to whole expressions are tested in `test_sql_filter`."""

from __future__ import annotations

import pytest

from reput.filter import FilterSyntaxError, parse
from reput.filter.parser import DEPTH_MAX, parse_condition


@pytest.mark.parametrize(
    ("expression", "same"),
    [
        ("a = 1 OR b = 1 AND c = 1", "a = 1 OR (b = 1 AND c = 1)"),
        ("a = b > 1", "a = (b > 1)"),
        ("a = 1 = TRUE", "(a = 1) = TRUE"),
        ("a = b IS NULL", "(a = b) IS NULL"),
        ("NOT a = TRUE", "(NOT a) = TRUE"),
        ("- a > 1", "(- a) > 1"),
        ("a BETWEEN 1 AND 3 AND b = 1", "(a BETWEEN 1 AND 3) AND b = 1"),
        ("a BETWEEN (1) AND +3", "a BETWEEN 1 AND 3"),
        ("a NOT BETWEEN 3 AND 1", "a < 3 OR a > 1"),
        ("a CONTAINS '1' = b CONTAINS '2'", "(a CONTAINS '1') = (b CONTAINS '2')"),
    ],
)
def test_precedence(expression, same):
    """NOT and signs bind tightest, OR least, and equal operators associate to the left."""
    values = [None, "1", "2", "3", "x", "true"]
    for a in values:
        for b in values:
            properties = {name: value for name, value in (("a", a), ("b", b), ("c", b)) if value is not None}
            assert outcome_of(expression, properties) == outcome_of(same, properties)


def outcome_of(expression: str, properties: dict[str, str]) -> object:
    """Return the result, or the class of the exception."""
    try:
        return parse(expression).evaluate(properties)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize(
    "rest", ["garbage", ")", "'x'", "+ 1", "x #", "2", "( ", "TRUE", "-- note", "99999999999999999999", " "]
)
def test_what_follows_a_complete_expression_is_ignored(rest):
    """Except for one token, which must be valid."""
    assert parse(f"a = 1 {rest}").evaluate({"a": "1"}) is True


@pytest.mark.parametrize("rest", ["#", "/* x", "'x", "* 2", "NOT", "NOT #", "AND", "= #", "< "])
def test_what_continues_an_expression_must_complete_it(rest):
    """Half an operator is an error, and the token after the expression must be readable."""
    with pytest.raises(FilterSyntaxError):
        parse(f"a = 1 {rest}")


def test_no_comparison_follows_is_null():
    """A comparison there is the rest of the text, and is ignored; in parentheses it is refused."""
    assert parse("a IS NULL > 1").evaluate({}) is True
    assert parse("a IS NULL NOT IN ('x')").evaluate({}) is True
    with pytest.raises(FilterSyntaxError):
        parse("(a IS NULL > 1)")


@pytest.mark.parametrize("word", ["CONTAINS", "STARTSWITH", "ENDSWITH"])
def test_the_words_of_5_1_3_are_keywords(word):
    """They were property names before."""
    with pytest.raises(FilterSyntaxError):
        parse(f"{word} = 'x'")


def test_like_and_now_are_names_of_properties():
    """RocketMQ's grammar knows neither."""
    assert parse("now = 'x'").evaluate({"now": "x"}) is True
    assert parse("a LIKE 'x'").evaluate({"a": "x"}) is False


def test_the_depth_of_a_condition_is_bounded():
    """It limits the number of frames of an evaluation."""
    assert parse_condition("NOT (" * (DEPTH_MAX - 1) + "a = 1" + ")" * (DEPTH_MAX - 1)).depth == DEPTH_MAX
    with pytest.raises(FilterSyntaxError, match="depth_max=256"):
        parse_condition("NOT (" * DEPTH_MAX + "a = 1" + ")" * DEPTH_MAX)
