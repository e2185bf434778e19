"""Parts of an expression, each with the closure that evaluates it and the type of its value.

    class         written as                                    value
    Property      a                                             its string, or null if it is missing
    Literal       'x', 5, 5000000000, 1.5                       the string or number
    Negation      - before anything                             the negated number; null for all else
    Condition     comparison, IN, IS, CONTAINS, AND, OR, NOT    true, false or null
    Truth         TRUE, FALSE, NULL                             itself; a Condition
    Junction      AND, OR                                       true, false or null; a Condition

The parser's checks use the class. A comparison uses the value type, which decides how to read a string on the other
side. Every number comes from the text of the expression, so all types are known before any message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

__all__ = [
    "Condition",
    "Evaluate",
    "Expression",
    "Junction",
    "Literal",
    "Negation",
    "Property",
    "Truth",
    "Value",
    "ValueType",
    "negation",
]

Value = str | int | float | bool | None
Evaluate = Callable[[Mapping[str, str]], Value]


class ValueType(Enum):
    """The type of an expression's value when it is not null, by Java's names."""

    STRING = "string"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    NULL = "null"


@dataclass(frozen=True, slots=True)
class Expression:
    """Anything that has a value.

    Attributes:
        evaluate: returns the value for the properties of one message; raises FilterEvaluationError.
        value_type: of that value when it is not null; NULL if it always is.
        depth: number of nested calls of `evaluate`, including itself.
    """

    evaluate: Evaluate
    value_type: ValueType
    depth: int


@dataclass(frozen=True, slots=True)
class Property(Expression):
    """A property of the message, by name."""

    name: str

    @classmethod
    def named(cls, name: str) -> Property:
        """Return the property *name*."""
        return cls(lambda properties: properties.get(name), ValueType.STRING, 1, name)


@dataclass(frozen=True, slots=True)
class Literal(Expression):
    """A string or a number as it stands in the text."""

    value: str | int | float

    @classmethod
    def of(cls, value: str | int | float, value_type: ValueType) -> Literal:
        """Return the literal *value*."""
        return cls(lambda _: value, value_type, 1, value)


@dataclass(frozen=True, slots=True)
class Negation(Expression):
    """A minus sign before an operand; `value` is the resulting number, None for null."""

    value: int | float | None


@dataclass(frozen=True, slots=True)
class Condition(Expression):
    """An expression that is true, false or unknown."""

    @classmethod
    def of(cls, evaluate: Evaluate, depth: int) -> Condition:
        """Return a condition that *evaluate* decides."""
        return cls(evaluate, ValueType.BOOLEAN, depth)


@dataclass(frozen=True, slots=True)
class Truth(Condition):
    """TRUE, FALSE, or NULL, which is None."""

    value: bool | None

    @classmethod
    def literal(cls, value: bool | None) -> Truth:
        """Return the literal *value*."""
        return cls(lambda _: value, ValueType.NULL if value is None else ValueType.BOOLEAN, 1, value)


@dataclass(frozen=True, slots=True)
class Junction(Condition):
    """Conditions that are all joined by AND (`word`), or all by OR."""

    word: str
    operands: tuple[Condition, ...]


def negation(operand: Expression) -> Negation:
    """Return ``- operand``: numbers are negated, everything else becomes null."""
    if isinstance(operand, Negation | Literal) and isinstance(operand.value, int | float):
        value = -operand.value
        return Negation(lambda _: value, operand.value_type, 1, value)
    if isinstance(operand, Negation):
        return operand
    if not isinstance(operand, Condition):
        return Negation(lambda _: None, ValueType.NULL, 1, None)
    evaluate = operand.evaluate

    def discard(properties: Mapping[str, str]) -> None:
        # The result is null for any operand, but an error of the operand must propagate.
        evaluate(properties)

    return Negation(discard, ValueType.NULL, operand.depth + 1, None)
