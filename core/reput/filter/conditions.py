"""Conditions: each operator of SQL92 as a closure over its operands.

The closures check only what depends on a message's properties; the parser has refused everything that RocketMQ refuses.
Unknown (null) is None. Most conditions have a property on the left of a literal; their closure holds the converted
literal, so an evaluation costs one call, one look-up and one comparison.

Source: RocketMQ filter, ComparisonExpression, LogicExpression, UnaryExpression and UnaryInExpression.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reput.filter.errors import FilterEvaluationError, quoted
from reput.filter.expression import Condition, Expression, Junction, Literal, Negation, Property, ValueType
from reput.filter.java_numbers import double_is_less, read_double, read_int, read_long

__all__ = [
    "FLAT_OPERAND_COUNT_MAX",
    "all_of",
    "any_of",
    "between",
    "equal",
    "in_strings",
    "inversion",
    "is_null",
    "order",
    "string_test",
    "truth_of_property",
]

# Any: the types of both sides are checked once, when the condition is made.
_Convert = Callable[[Any], Any]
_Compare = Callable[[Any, Any], bool]
_Properties = Mapping[str, str]

FLAT_OPERAND_COUNT_MAX = 128
"""Operands of a junction up to which it is taken up into a like one around it."""

_NUMBERS = (ValueType.INT, ValueType.LONG, ValueType.DOUBLE)
_READERS: dict[ValueType, _Convert] = {
    ValueType.INT: read_int,
    ValueType.LONG: read_long,
    ValueType.DOUBLE: read_double,
}
_ORDERS: dict[str, _Compare] = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_DOUBLE_ORDERS: dict[str, _Compare] = {
    "<": double_is_less,
    "<=": lambda left, right: not double_is_less(right, left),
    ">": lambda left, right: double_is_less(right, left),
    ">=": lambda left, right: not double_is_less(left, right),
}
_STRING_TESTS: dict[str, _Compare] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def truth_of_property(operand: Property) -> Condition:
    """Return the condition for a bare property: unknown if it is missing, else false; no string is true."""
    name = operand.name
    return Condition.of(lambda properties: False if name in properties else None, 1)


def inversion(operand: Condition) -> Condition:
    """Return ``NOT operand``."""
    evaluate_operand = operand.evaluate

    def evaluate(properties: _Properties) -> bool | None:
        value = evaluate_operand(properties)
        return None if value is None else not value

    return Condition.of(evaluate, operand.depth + 1)


def all_of(left: Condition, right: Condition) -> Junction:
    """Return ``left AND right``; what follows a false operand is not evaluated."""
    operands = _flat("AND", left, right)
    evaluates = tuple(operand.evaluate for operand in operands)

    def evaluate(properties: _Properties) -> bool | None:
        result: bool | None = True
        for evaluate_operand in evaluates:
            value = evaluate_operand(properties)
            if value is None:
                result = None
            elif not value:
                return False
        return result

    return Junction(evaluate, ValueType.BOOLEAN, _depth(*operands), "AND", operands)


def any_of(left: Condition, right: Condition) -> Junction:
    """Return ``left OR right``; what follows a true operand is not evaluated."""
    operands = _flat("OR", left, right)
    evaluates = tuple(operand.evaluate for operand in operands)

    def evaluate(properties: _Properties) -> bool | None:
        result: bool | None = False
        for evaluate_operand in evaluates:
            value = evaluate_operand(properties)
            if value is None:
                result = None
            elif value:
                return True
        return result

    return Junction(evaluate, ValueType.BOOLEAN, _depth(*operands), "OR", operands)


def is_null(operand: Expression) -> Condition:
    """Return ``operand IS NULL``, which is never unknown."""
    evaluate_operand = operand.evaluate
    return Condition.of(lambda properties: evaluate_operand(properties) is None, operand.depth + 1)


def equal(left: Expression, right: Expression) -> Condition:
    """Return ``left = right``.

    Two nulls are equal. A null on the left alone is unknown, a null on the right alone is different.
    """
    convert_left, convert_right, compare = _equality(left.value_type, right.value_type)
    if isinstance(left, Property) and _is_constant(right):
        return _property_against_constant(left, right, convert_left, convert_right, compare)
    evaluate_left, evaluate_right = left.evaluate, right.evaluate

    def evaluate(properties: _Properties) -> bool | None:
        left_value, right_value = evaluate_left(properties), evaluate_right(properties)
        if left_value is None:
            return True if right_value is None else None
        return right_value is not None and compare(convert_left(left_value), convert_right(right_value))

    return Condition.of(evaluate, _depth(left, right))


def order(sign: str, left: Expression, right: Expression) -> Condition:
    """Return ``left sign right`` for ``<``, ``<=``, ``>`` or ``>=``: two properties are compared as doubles."""
    convert_left, convert_right, common_type = _conversions(left.value_type, right.value_type)
    compare = (_DOUBLE_ORDERS if common_type is ValueType.DOUBLE else _ORDERS)[sign]
    if isinstance(left, Property) and _is_constant(right):
        return _property_against_constant(left, right, convert_left, convert_right, compare)
    evaluate_left, evaluate_right = left.evaluate, right.evaluate

    def evaluate(properties: _Properties) -> bool | None:
        left_value = evaluate_left(properties)
        if left_value is None:
            return None
        right_value = evaluate_right(properties)
        if right_value is None:
            return None
        return compare(convert_left(left_value), convert_right(right_value))

    return Condition.of(evaluate, _depth(left, right))


def between(operand: Expression, low: Expression, high: Expression, *, negated: bool) -> Condition:
    """Return ``operand [NOT] BETWEEN low AND high``, both bounds included."""
    if negated:
        return any_of(order("<", operand, low), order(">", operand, high))
    return all_of(order(">=", operand, low), order("<=", operand, high))


def in_strings(operand: Property, strings: Sequence[str], *, negated: bool) -> Condition:
    """Return ``operand [NOT] IN (strings)``, unknown if the property is missing."""
    name = operand.name
    members = frozenset(strings)

    def evaluate(properties: _Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else (value in members) is not negated

    return Condition.of(evaluate, 1)


def string_test(word: str, operand: Expression, text: str, *, negated: bool) -> Condition:
    """Return ``operand [NOT] CONTAINS text`` (or STARTSWITH, ENDSWITH).

    False, negated or not, if *text* is empty or the operand gives no string. With an empty *text* the operand is not
    even evaluated.
    """
    if not text:
        return Condition.of(lambda _: False, 1)
    evaluate_operand = operand.evaluate
    test = _STRING_TESTS[word]

    def evaluate(properties: _Properties) -> bool:
        value = evaluate_operand(properties)
        return isinstance(value, str) and test(value, text) is not negated

    return Condition.of(evaluate, operand.depth + 1)


def _property_against_constant(
    left: Property, right: Expression, convert_left: _Convert, convert_right: _Convert, compare: _Compare
) -> Condition:
    """Return a comparison of a property with a value that is never null: unknown only if the property is missing."""
    name = left.name
    constant = convert_right(right.evaluate({}))
    if convert_left is _as_it_is:

        def evaluate_string(properties: _Properties) -> bool | None:
            text = properties.get(name)
            return None if text is None else compare(text, constant)

        return Condition.of(evaluate_string, 1)

    def evaluate(properties: _Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else compare(convert_left(text), constant)

    return Condition.of(evaluate, 1)


def _is_constant(expression: Expression) -> bool:
    return isinstance(expression, Literal | Negation) and expression.value is not None


def _equality(left: ValueType, right: ValueType) -> tuple[_Convert, _Convert, _Compare]:
    """Return how to convert both sides, and how to compare the results for equality."""
    if left is right or ValueType.NULL in (left, right):
        return _as_it_is, _as_it_is, operator.eq
    if left is ValueType.STRING and right is ValueType.BOOLEAN:
        return _is_true_word, _as_it_is, operator.eq
    if left is ValueType.BOOLEAN and right is ValueType.STRING:
        return _as_it_is, _as_it_is, _fail_to_cast
    if ValueType.BOOLEAN in (left, right):
        return _as_it_is, _as_it_is, _differ
    # Doubles use Python's equality. It differs from Java's total order only with a zero or NaN on both sides, and
    # neither can be written as a literal.
    convert_left, convert_right, _ = _conversions(left, right)
    return convert_left, convert_right, operator.eq


def _conversions(left: ValueType, right: ValueType) -> tuple[_Convert, _Convert, ValueType]:
    """Return how to convert both sides to the numbers to compare, and the type of these numbers.

    A string is read as the type of the other side, two strings as doubles; of two numbers, the narrower is widened.
    """
    numbers = [value_type for value_type in (left, right) if value_type in _NUMBERS]
    common_type = max(numbers, key=_NUMBERS.index, default=ValueType.DOUBLE)
    return _conversion(left, common_type), _conversion(right, common_type), common_type


def _conversion(value_type: ValueType, common_type: ValueType) -> _Convert:
    if value_type is ValueType.STRING:
        return _READERS[common_type]
    # Java rounds a long to a double before it compares the two; Python would compare them exactly.
    return float if common_type is ValueType.DOUBLE else _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _is_true_word(text: str) -> bool:
    return text.lower() == "true"


def _fail_to_cast(left: bool, right: str) -> bool:
    raise FilterEvaluationError(
        f"a condition is compared with a string on its right: left={left} right={quoted(right)}"
    )


def _differ(left: Any, right: Any) -> bool:
    return False


def _flat(word: str, *operands: Condition) -> tuple[Condition, ...]:
    """Return *operands*, replacing each junction of the same kind by its operands; result and order stay the same.

    Chains of hundreds are common and must not become as many nested calls. Junctions beyond a size stay as they are;
    otherwise the cost of reading a chain would grow with the square of its length.
    """
    flat: list[Condition] = []
    for operand in operands:
        if isinstance(operand, Junction) and operand.word == word and len(operand.operands) < FLAT_OPERAND_COUNT_MAX:
            flat += operand.operands
        else:
            flat.append(operand)
    return tuple(flat)


def _depth(*operands: Expression) -> int:
    return 1 + max(operand.depth for operand in operands)
