"""SQL92 expressions, compared with the answers of RocketMQ itself."""

from __future__ import annotations

import json
import logging
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput.filter import FilterEvaluationError, FilterSyntaxError, SqlFilter, parse
from rocketmq_vectors import DATA

VECTORS = json.loads((DATA / "sql92-vectors.json").read_text("utf-8"))["vectors"]
RANDOM_EXPRESSIONS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "random-expressions.jsonl").read_text("utf-8").splitlines()
]


def outcome(expression: str, properties: dict[str, str] | None) -> Any:
    """Return the result of *expression* for *properties*, or ``error``."""
    try:
        return parse(expression).evaluate(properties)
    except FilterEvaluationError:
        return "error"


def parse_or_error(expression: str) -> tuple[SqlFilter | None, FilterSyntaxError | None]:
    """Return the filter, or the reason why there is none."""
    try:
        return parse(expression), None
    except FilterSyntaxError as error:
        return None, error


@pytest.mark.parametrize("vector", [pytest.param(vector, id=vector["id"]) for vector in VECTORS])
def test_a_vector_of_rocketmq(vector):
    """Refused, true, false, unknown or failing. Where versions differ, 5.3.3 counts."""
    expected = vector.get("both") or vector["5.3.3"]
    if expected["parse"] != "ok":
        with pytest.raises(FilterSyntaxError):
            parse(vector["expression"])
        return
    result = expected["result"]
    assert outcome(vector["expression"], vector["properties"]) == (
        "error" if isinstance(result, str) and result.startswith("error:") else result
    )
    assert parse(vector["expression"]).matches(vector["properties"]) is (result is True)


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("line", RANDOM_EXPRESSIONS, ids=range(len(RANDOM_EXPRESSIONS)))
def test_a_random_expression_means_what_it_means_to_rocketmq(line):
    """Random expressions from a fixed seed; ``data/README.md`` describes how the answers were made."""
    if line["parse"] != "ok":
        with pytest.raises(FilterSyntaxError):
            parse(line["expression"])
        return
    for properties, result in line["results"]:
        assert outcome(line["expression"], properties) == result, properties


@pytest.mark.parametrize(
    ("expression", "position", "text"),
    [
        ("", 0, "found=the end"),
        ("a = ", 4, "a property, a literal or a parenthesis is expected: found=the end"),
        ("a = 'x' AND (b > 1", 18, "an operator or a closing parenthesis is expected: found=the end"),
        ("a = 1 #", 6, "no token can be read here: character='#'"),
        ("a > 'x'", 2, "a string literal is neither less nor greater"),
        ("a BETWEEN 3 AND 1", 2, "the lower bound of BETWEEN lies above"),
        ("a BETWEEN 3 OR 1", 12, "AND and the upper bound of BETWEEN is expected: found='OR'"),
        ("b IS NULL AND a IS 1", 19, "NULL is expected: found='1'"),
        ("a NOT 'x'", 6, "BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH after NOT is expected"),
        ("'x' IN ('x')", 4, "only a property can be IN"),
        ("a IN ()", 6, "a string is expected: found=')'"),
        ("a = 1 AND 5", 6, "a number or a string stands where a condition is needed"),
        ("a = NULL", 2, "NULL is compared by IS"),
        ("a = 9223372036854775808", 4, "more than 64 bits"),
        ("a = 0.0", 4, "zero, or beyond all doubles"),
    ],
)
def test_a_refused_expression_says_what_is_wrong_and_where(expression, position, text):
    """A user only sees the message of a remote broker, which must suffice."""
    with pytest.raises(FilterSyntaxError) as caught:
        parse(expression)
    assert isinstance(caught.value, ValueError)
    assert caught.value.position == position
    assert text in str(caught.value)
    assert str(caught.value).endswith(f"position={position}")


def test_a_refusal_survives_the_way_to_another_process():
    """Exceptions are pickled, and keep all their attributes."""
    with pytest.raises(FilterSyntaxError) as caught:
        parse("a = #")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.position, copy.detail) == (str(caught.value), 4, "character='#'")


def test_the_failing_value_is_named():
    """The log explains why a message was skipped."""
    with pytest.raises(FilterEvaluationError, match=r"value='1\.5' type=int"):
        parse("a > 1").evaluate({"a": "1.5"})
    with pytest.raises(FilterEvaluationError, match="right='x'"):
        parse("TRUE = a").evaluate({"a": "x"})


def test_the_first_failure_is_a_warning_and_no_other(caplog):
    """A million equal failures produce one line."""
    caplog.set_level(logging.DEBUG, logger="reput.filter")
    wanted = parse("a > 1")
    assert not wanted.matches({"a": "1.5"})
    assert not wanted.matches({"a": "2.5"})
    assert wanted.matches({"a": "2"})
    assert [record.levelname for record in caplog.records] == ["WARNING", "DEBUG"]
    assert "expression='a > 1'" in caplog.records[0].getMessage()


def test_a_filter_shows_its_expression():
    """In a debugger and in a status."""
    assert parse("a = 'x'").expression == "a = 'x'"
    assert repr(parse("a = 'x'")) == """SqlFilter("a = 'x'")"""


KEYWORDS = "NOT AND OR BETWEEN IN IS NULL TRUE FALSE CONTAINS STARTSWITH ENDSWITH"
SIGNS = "( ) , = <> < <= > >= + -"
OPERANDS = "a b 0 1 2.5 3000000000 1e400 'x' '1' ''"
ODDITIES = ["-- c\n", "/* c */", "/*", "'", "#"]
WORDS = st.sampled_from([*KEYWORDS.split(), *SIGNS.split(), *OPERANDS.split(), *ODDITIES])
EXPRESSIONS = st.one_of(st.lists(WORDS, max_size=14).map(" ".join), st.text(max_size=30))
PROPERTIES = st.none() | st.dictionaries(
    st.sampled_from("ab"), st.sampled_from(["1", "-2", "2.5", "x", "true", "NaN", "", "9" * 30]) | st.text(max_size=8)
)


@pytest.mark.slow
@pytest.mark.newest_python
@given(EXPRESSIONS, PROPERTIES)
def test_any_text_is_refused_or_gives_one_of_four_outcomes(expression, properties):
    """True, false, unknown, or a failure of one class: nothing else."""
    wanted, error = parse_or_error(expression)
    if wanted is None:
        assert 0 <= error.position <= len(expression)
        return
    try:
        result = wanted.evaluate(properties)
    except FilterEvaluationError:
        result = "error"
    assert result in (True, False, None, "error")
    assert wanted.matches(properties) is (result is True)


CONDITIONS = st.recursive(
    st.sampled_from(["a", "a = 1", "b > 1", "a IS NULL", "b IN ('x')", "TRUE", "a BETWEEN 1 AND b", "b CONTAINS 'x'"]),
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from(["AND", "OR", "="]), inner)
        | st.builds("NOT ({})".format, inner)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@pytest.mark.newest_python
@given(CONDITIONS, CONDITIONS, PROPERTIES)
def test_junctions_follow_the_truth_tables_of_sql(left, right, properties):
    """A deciding operand ends the evaluation; a failure that is reached is the result of the whole."""
    first = outcome(left, properties)
    second = outcome(right, properties)
    if first in ("error", False):
        expected_and = first
    else:
        expected_and = second if second in ("error", False) else None if None in (first, second) else True
    if first in ("error", True):
        expected_or = first
    else:
        expected_or = second if second in ("error", True) else None if None in (first, second) else False
    assert outcome(f"({left}) AND ({right})", properties) == expected_and
    assert outcome(f"({left}) OR ({right})", properties) == expected_or


@pytest.mark.slow
@pytest.mark.newest_python
def test_the_depth_of_parentheses_is_free():
    """RocketMQ also accepts thousands."""
    assert parse("(" * 20_000 + "a = 1" + ")" * 20_000).evaluate({"a": "1"}) is True
    with pytest.raises(FilterSyntaxError, match="found=the end"):
        parse("(" * 20_000 + "a = 1" + ")" * 19_999)


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("form", ["a = {}", "(a = {})"])
def test_a_chain_of_thousands_is_one_junction(form):
    """Lists of ids become such chains, and programs add parentheses around everything."""
    chain = " OR ".join(form.format(number) for number in range(5_000))
    assert parse(chain).evaluate({"a": "4999"}) is True
    assert parse(chain).evaluate({"a": "5000"}) is False


@pytest.mark.slow
@pytest.mark.newest_python
def test_a_chain_nested_by_parentheses_is_one_junction_too():
    """To the left, as it grows, and to the right."""
    count = 2_000
    left = "(" * count + "a = 0" + "".join(f" OR a = {number})" for number in range(1, count + 1))
    right = "".join(f"a = {number} OR (" for number in range(count)) + f"a = {count}" + ")" * count
    for chain in (left, right):
        assert parse(chain).evaluate({"a": str(count)}) is True
        assert parse(chain).evaluate({"a": str(count + 1)}) is False


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize(
    "form",
    [
        "NOT " * 5_000 + "a",
        "a = 1" + " = TRUE" * 5_000,
        "a" + " IS NULL" * 5_000,
        "a" + " CONTAINS 'x'" * 5_000,
        "".join(f"(a = {number} {'AND' if number % 2 else 'OR'} " for number in range(5_000)) + "a" + ")" * 5_000,
        "- (" * 5_000 + "a = 1" + ")" * 5_000 + " IS NULL",
    ],
    ids=["NOT", "=", "IS NULL", "CONTAINS", "AND within OR", "-"],
)
def test_operators_that_lie_too_deep_are_refused_or_work(form):
    """The interpreter's stack is never exhausted."""
    wanted, error = parse_or_error(form)
    if wanted is None:
        assert error.detail == "depth_max=256"
    else:
        assert wanted.evaluate({"a": "1"}) in (True, False, None)


def test_operators_as_deep_as_allowed_work():
    """With a margin below Python's own limit."""
    assert parse("NOT (" * 254 + "a = 1" + ")" * 254).evaluate({"a": "1"}) is True


def test_a_caller_without_stack_gets_a_failure_and_no_recursion_error():
    """The message does not match, as in RocketMQ."""
    wanted = parse("NOT (" * 254 + "a = 1" + ")" * 254)

    def descend(depth: int) -> bool | None:
        return wanted.evaluate({"a": "1"}) if depth == 0 else descend(depth - 1)

    outcomes: list[str] = []

    def run() -> None:
        try:
            descend(sys.getrecursionlimit() - 150)
        except FilterEvaluationError as error:
            outcomes.append(str(error))

    # A new thread begins with an empty stack, so the depth does not depend on the caller.
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert outcomes
    assert "nested too deeply" in outcomes[0]


def test_threads_share_a_filter():
    """The only state between evaluations is whether a failure was reported."""
    wanted = parse("a BETWEEN 1 AND 500 OR b = 'x'")
    counts: list[int] = []

    def count(wanted: SqlFilter) -> None:
        counts.append(sum(wanted.matches({"a": str(number)}) for number in range(1_000)))

    threads = [threading.Thread(target=count, args=(wanted,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [500] * 4
