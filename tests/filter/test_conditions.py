"""Operators as closures: what is evaluated, in which order, and how junctions grow."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from reput.filter.conditions import FLAT_OPERAND_COUNT_MAX, all_of, any_of, string_test
from reput.filter.expression import Condition, Truth


class Probe:
    """A condition that returns *value* and counts its evaluations."""

    def __init__(self, value: bool | None) -> None:
        self.value = value
        self.evaluation_count = 0
        self.condition = Condition.of(self.evaluate, 1)

    def evaluate(self, properties: Mapping[str, str]) -> bool | None:
        self.evaluation_count += 1
        return self.value


@pytest.mark.parametrize("first", [True, False, None])
def test_a_junction_stops_at_the_operand_that_decides(first):
    """So an expression can guard a comparison that would fail."""
    second = Probe(True)
    all_of(Truth.literal(first), second.condition).evaluate({})
    assert second.evaluation_count == (first is not False)
    second = Probe(True)
    any_of(Truth.literal(first), second.condition).evaluate({})
    assert second.evaluation_count == (first is not True)


def test_a_test_for_the_empty_string_asks_nobody():
    """It is false, as in RocketMQ, without evaluating the operand."""
    operand = Probe(True)
    assert string_test("CONTAINS", operand.condition, "", negated=False).evaluate({}) is False
    assert string_test("CONTAINS", operand.condition, "", negated=True).evaluate({}) is False
    assert operand.evaluation_count == 0


def test_a_junction_takes_up_its_like_and_no_other():
    """AND within AND becomes one list, AND within OR does not."""
    a, b, c = (Truth.literal(value) for value in (True, False, None))
    assert all_of(all_of(a, b), c).operands == (a, b, c)
    assert all_of(a, all_of(b, c)).operands == (a, b, c)
    assert len(all_of(any_of(a, b), c).operands) == 2
    assert all_of(all_of(a, b), c).depth == 2
    assert all_of(any_of(a, b), c).depth == 3


def test_a_junction_grows_a_level_when_it_is_full():
    """The cost of parsing a chain must not grow quadratically."""
    chain = all_of(Truth.literal(True), Truth.literal(True))
    for _ in range(3 * FLAT_OPERAND_COUNT_MAX):
        chain = all_of(chain, Truth.literal(True))
        assert len(chain.operands) <= FLAT_OPERAND_COUNT_MAX
    assert chain.depth == 5
    assert chain.evaluate({}) is True
