"""Expressions of clients: each text is compiled once, and a connection brings only so many at once."""

from __future__ import annotations

import pytest

from reput.broker.state import expressions
from reput.broker.state.expressions import ALLOWANCE, EXPRESSION_SIZE_MAX, KEPT_SIZE_MAX, Expressions
from reput.filter.errors import FilterSyntaxError
from reput.remoting.request_code import RequestCode as Code
from reput.remoting.response_code import ResponseCode
from serving import heartbeat_body


class Peer:
    """What `Expressions` needs of a connection."""

    def __init__(self):
        self.attachments = {}


@pytest.fixture
def parsed(monkeypatch):
    """The texts that were compiled."""
    texts = []
    parse = expressions.parse

    def noted(text):
        texts.append(text)
        return parse(text)

    monkeypatch.setattr(expressions, "parse", noted)
    return texts


def long_expression(number, size=EXPRESSION_SIZE_MAX):
    """Return an expression of *size* characters, another one for each number."""
    return f"a = '{number}".ljust(size - 1, "x") + "'"


def test_a_text_is_compiled_once(parsed):
    """For all topics and connections."""
    made = Expressions(lambda: 0.0)
    first = made.subscribe(Peer(), "T", "a > 1", "SQL92", 1)
    second = made.subscribe(Peer(), "U", "a > 1", "SQL92", 2)
    assert first.compiled is second.compiled
    assert (second.topic, second.expression, second.sub_version) == ("U", "a > 1", 2)
    assert parsed == ["a > 1"]


@pytest.mark.slow
def test_tags_are_no_expressions(parsed):
    """They need no allowance."""
    made, peer = Expressions(lambda: 0.0), Peer()
    for number in range(100):
        assert made.subscribe(peer, "T", f"{number}" * 10_000, "TAG", 1).expression_type == "TAG"
    assert parsed == []


def test_a_connection_brings_so_many_new_expressions_at_once(parsed):
    """More are refused, and pass when some time has passed; those that are known pass at any time."""
    now = 0.0
    made, peer = Expressions(lambda: now), Peer()
    for number in range(ALLOWANCE // EXPRESSION_SIZE_MAX):
        made.compiled(peer, long_expression(number))
    with pytest.raises(FilterSyntaxError, match="too many new expressions"):
        made.compiled(peer, "a > 1")
    made.compiled(peer, long_expression(0))
    made.compiled(Peer(), "a > 2")
    now = 1.0
    made.compiled(peer, "a > 1")
    assert len(parsed) == ALLOWANCE // EXPRESSION_SIZE_MAX + 2


def test_an_expression_that_does_not_compile_counts(parsed):
    """It takes the same time."""
    made, peer = Expressions(lambda: 0.0), Peer()
    for _ in range(10):
        with pytest.raises(FilterSyntaxError):
            made.compiled(peer, long_expression(0) + " AND")
    assert len(parsed) == 1


def test_the_filters_that_are_kept_are_bounded(parsed):
    """The one that was used least recently goes first."""
    made = Expressions(lambda: 0.0)
    for number in range(KEPT_SIZE_MAX // EXPRESSION_SIZE_MAX + 1):
        made.compiled(Peer(), long_expression(number))
        made.compiled(Peer(), long_expression(0))
    assert made.kept_size == sum(map(len, made.filters)) <= KEPT_SIZE_MAX
    assert long_expression(0) in made.filters
    assert long_expression(1) not in made.filters


def test_a_heartbeat_compiles_a_bounded_part_of_its_expressions(client, parsed):
    """It is answered, and so are the requests behind it."""
    body = heartbeat_body("c", (), {"g": {f"T{number}": long_expression(number) for number in range(100)}})
    assert client.ask(Code.HEART_BEAT, body=body.replace(b'"TAG"', b'"SQL92"')).code == ResponseCode.SUCCESS
    assert sum(map(len, parsed)) <= ALLOWANCE


def test_pulls_compile_a_bounded_part_of_their_expressions(client, parsed):
    """The others are refused like one that does not compile."""
    client.send_message("T")
    codes = [
        client.pull("g", "T", expressionType="SQL92", subscription=long_expression(number)).code for number in range(9)
    ]
    assert codes == [ResponseCode.SYSTEM_ERROR] * 2 + [ResponseCode.SUBSCRIPTION_PARSE_FAILED] * 7
    assert sum(map(len, parsed)) <= ALLOWANCE
    assert client.ask(Code.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}).code == ResponseCode.SUCCESS
