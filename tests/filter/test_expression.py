"""Parts of expressions, and their negation."""

from __future__ import annotations

import pytest

from reput.filter.expression import Condition, Literal, Property, Truth, ValueType, negation


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        (Literal.of(5, ValueType.INT), -5),
        (Literal.of(2**40, ValueType.LONG), -(2**40)),
        (Literal.of(1.5, ValueType.DOUBLE), -1.5),
    ],
)
def test_the_negation_of_a_number_is_a_number_of_its_type(literal, value):
    """The double negation is the number again."""
    negated = negation(literal)
    assert negated.value == value
    assert negated.evaluate({}) == value
    assert negated.value_type is literal.value_type
    assert negation(negated).value == literal.value


@pytest.mark.parametrize(
    "operand",
    [Property.named("a"), Literal.of("1", ValueType.STRING), Truth.literal(True), negation(Property.named("a"))],
)
def test_the_negation_of_all_else_is_null(operand):
    """Even of a property that looks like a number."""
    negated = negation(operand)
    assert negated.value is None
    assert negated.evaluate({"a": "1"}) is None
    assert negated.value_type is ValueType.NULL


def test_the_negation_of_a_condition_still_asks_it():
    """It may fail, and then the whole expression fails; a second minus sign changes nothing."""
    asked = []
    condition = Condition.of(lambda properties: asked.append(properties) or True, 1)
    assert negation(negation(condition)).evaluate({"a": "1"}) is None
    assert asked == [{"a": "1"}]
