"""SQL92 grammar: builds the condition of an expression from its tokens, without recursion.

Lowest precedence first, all binary levels from left to right:

    or         = and { OR and }
    and        = equality { AND equality }
    equality   = comparison { ( "=" | "<>" ) comparison | IS [ NOT ] NULL }
    comparison = unary { ( ">" | ">=" | "<" | "<=" ) unary
                       | [ NOT ] BETWEEN unary AND unary
                       | [ NOT ] IN "(" string { "," string } ")"
                       | [ NOT ] ( CONTAINS | STARTSWITH | ENDSWITH ) string }
    unary      = "+" unary | "-" unary | NOT unary | primary
    primary    = string | integer | float | TRUE | FALSE | NULL | identifier | "(" or ")"

Three surprising rules of RocketMQ's parser are kept, because an expression must mean the same in both. Once ``or`` is
complete, the rest of the text is ignored, except for one token that must be readable. NOT binds tighter than any
comparison. A property is never true, so ``a LIKE 'x'`` is the property a and matches nothing.

Source: RocketMQ filter 5.3.3, SelectorParser.jj and the constructors of its expressions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

from reput.filter import conditions
from reput.filter.errors import FilterSyntaxError, quoted
from reput.filter.expression import Condition, Expression, Literal, Property, Truth, ValueType, negation
from reput.filter.java_numbers import INT_MAX, LONG_MAX
from reput.filter.tokens import Token, tokens

__all__ = ["DEPTH_MAX", "parse_condition"]

DEPTH_MAX = 256
"""Operators within each other. Evaluation takes one frame of Python's stack for each. Parentheses cost nothing, and
128 operands of one AND or OR count as one level however they are nested."""

_ORDER_SIGNS = frozenset(["<", "<=", ">", ">="])
_EQUALITY_SIGNS = frozenset(["=", "<>"])
_STRING_TESTS = frozenset(["CONTAINS", "STARTSWITH", "ENDSWITH"])
_TRUTHS = {"TRUE": True, "FALSE": False, "NULL": None}


class _Level(IntEnum):
    """How tightly an operator binds. A pending operator is finished as soon as one of a lower level follows."""

    PARENTHESIS = 0
    OR = 1
    AND = 2
    EQUALITY = 3
    LOW_BOUND = 4
    COMPARISON = 5
    UNARY = 6


@dataclass(slots=True)
class _Pending:
    """An operator that waits for the operand on its right."""

    level: _Level
    token: Token
    finish: Callable[[Expression], Expression]


_JUNCTIONS = {"AND": _Level.AND, "OR": _Level.OR}


def parse_condition(expression: str) -> Condition:
    """Return the condition of *expression*.

    Raises:
        FilterSyntaxError: RocketMQ refuses it, or more than `DEPTH_MAX` operators are nested.
    """
    return _Parser(expression).parse()


class _Parser:
    """One use each: tokens come in, operators wait in `pending` until their right operand is complete."""

    def __init__(self, expression: str) -> None:
        self._tokens = tokens(expression)
        self._token = next(self._tokens)
        self._pending: list[_Pending] = []
        self._parenthesis_count = 0

    def parse(self) -> Condition:
        """Read operands and operators in turn until the expression is complete."""
        value = self._read_operand()
        comparable = True  # IS NULL leaves the level of comparisons: no such operator may follow.
        while True:
            token = self._token
            if self._pending and self._pending[-1].level is _Level.LOW_BOUND:
                value = self._read_high_bound(value)
            elif comparable and token.kind in _ORDER_SIGNS:
                self._push(_Level.COMPARISON, partial(_order, token, value))
                value = self._read_operand()
            elif comparable and (token.kind in _STRING_TESTS or token.kind in ("NOT", "BETWEEN", "IN")):
                value = self._read_predicate(value)
            elif token.kind in _EQUALITY_SIGNS:
                left = self._finish(value, _Level.EQUALITY)
                self._push(_Level.EQUALITY, partial(_equality, token, left))
                value = self._read_operand()
                comparable = True
            elif token.kind == "IS":
                value = self._read_is_null(self._finish(value, _Level.EQUALITY))
                comparable = False
            elif token.kind in _JUNCTIONS:
                level = _JUNCTIONS[token.kind]
                left = _condition(self._finish(value, level), token.position)
                self._push(level, partial(_junction, token, left))
                value = self._read_operand()
                comparable = True
            elif self._parenthesis_count:
                value = self._close_parenthesis(value)
                comparable = True
            else:
                return _condition(self._finish(value, _Level.OR), 0)

    def _read_operand(self) -> Expression:
        """Read signs, NOT and opening parentheses up to a primary, and finish the operators that wait for it."""
        while True:
            token = self._token
            if token.kind == "(":
                self._push(_Level.PARENTHESIS, _as_it_is)
                self._parenthesis_count += 1
            elif token.kind == "+":
                self._advance()
            elif token.kind == "-":
                self._push(_Level.UNARY, negation)
            elif token.kind == "NOT":
                self._push(_Level.UNARY, partial(_inversion, token))
            else:
                operand = _primary(token)
                self._advance()
                return self._finish(operand, _Level.COMPARISON)

    def _read_high_bound(self, low: Expression) -> Expression:
        if self._token.kind != "AND":
            raise _unexpected(self._token, "AND and the upper bound of BETWEEN")
        pending = self._pending.pop()
        self._pending.append(_Pending(_Level.COMPARISON, pending.token, partial(pending.finish, low)))
        self._advance()
        return self._read_operand()

    def _read_predicate(self, value: Expression) -> Expression:
        """Read ``[NOT] BETWEEN``, ``[NOT] IN`` or a test of strings."""
        negated = self._token.kind == "NOT"
        if negated:
            self._advance()
        token = self._token
        if token.kind == "BETWEEN":
            self._push(_Level.LOW_BOUND, partial(_between, token, value, negated))
            return self._read_operand()
        if token.kind == "IN":
            return self._read_in(value, negated)
        if token.kind in _STRING_TESTS:
            self._advance()
            text = self._read("string", "a string").text
            return _bounded(conditions.string_test(token.kind, value, text, negated=negated), token.position)
        raise _unexpected(token, "BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH after NOT")

    def _read_in(self, value: Expression, negated: bool) -> Expression:
        token = self._read("IN", "IN")
        if not isinstance(value, Property):
            raise FilterSyntaxError("only a property can be IN a list", token.position)
        self._read("(", "a list in parentheses")
        strings = [self._read("string", "a string").text]
        while self._token.kind == ",":
            self._advance()
            strings.append(self._read("string", "a string").text)
        self._read(")", "a comma or the end of the list")
        return conditions.in_strings(value, strings, negated=negated)

    def _read_is_null(self, value: Expression) -> Expression:
        token = self._read("IS", "IS")
        negated = self._token.kind == "NOT"
        if negated:
            self._advance()
        self._read("NULL", "NULL")
        condition = conditions.is_null(value)
        return _bounded(conditions.inversion(condition) if negated else condition, token.position)

    def _close_parenthesis(self, value: Expression) -> Expression:
        self._read(")", "an operator or a closing parenthesis")
        value = self._finish(value, _Level.OR)
        self._pending.pop()
        self._parenthesis_count -= 1
        return self._finish(value, _Level.COMPARISON)

    def _finish(self, value: Expression, level: _Level) -> Expression:
        """Hand *value* to the operators that wait for it and bind at least as tightly as *level*."""
        while self._pending and self._pending[-1].level >= level:
            pending = self._pending.pop()
            value = _bounded(pending.finish(value), pending.token.position)
        return value

    def _push(self, level: _Level, finish: Callable[[Expression], Expression]) -> None:
        self._pending.append(_Pending(level, self._token, finish))
        self._advance()

    def _read(self, kind: str, expected: str) -> Token:
        token = self._token
        if token.kind != kind:
            raise _unexpected(token, expected)
        self._advance()
        return token

    def _advance(self) -> None:
        self._token = next(self._tokens)


def _primary(token: Token) -> Expression:
    if token.kind == "identifier":
        return Property.named(token.text)
    if token.kind == "string":
        return Literal.of(token.text, ValueType.STRING)
    if token.kind == "integer":
        return _integer(token)
    if token.kind == "float":
        return _float(token)
    if token.kind in _TRUTHS:
        return Truth.literal(_TRUTHS[token.kind])
    raise _unexpected(token, "a property, a literal or a parenthesis")


def _integer(token: Token) -> Literal:
    digits = token.text.rstrip("lL")
    # Check the length first: Python refuses to read some thousands of digits, with an error of its own.
    if len(digits) > len(str(LONG_MAX)) or int(digits) > LONG_MAX:
        raise FilterSyntaxError("an integer has more than 64 bits", token.position)
    value = int(digits)
    return Literal.of(value, ValueType.INT if value <= INT_MAX else ValueType.LONG)


def _float(token: Token) -> Literal:
    value = float(token.text)
    if value == 0.0 or math.isinf(value):
        raise FilterSyntaxError("a floating-point literal is zero, or beyond all doubles", token.position)
    return Literal.of(value, ValueType.DOUBLE)


def _condition(value: Expression, position: int) -> Condition:
    """Return *value* as an operand of AND, OR and NOT, and as the whole expression: a condition or a property."""
    if isinstance(value, Condition):
        return value
    if isinstance(value, Property):
        return conditions.truth_of_property(value)
    raise FilterSyntaxError("a number or a string stands where a condition is needed", position)


def _inversion(token: Token, operand: Expression) -> Condition:
    return conditions.inversion(_condition(operand, token.position))


def _junction(token: Token, left: Condition, right: Expression) -> Condition:
    join = conditions.all_of if token.kind == "AND" else conditions.any_of
    return join(left, _condition(right, token.position))


def _equality(token: Token, left: Expression, right: Expression) -> Condition:
    for operand in (left, right):
        if isinstance(operand, Truth) and operand.value is None:
            raise FilterSyntaxError("NULL is compared by IS, not by a sign", token.position)
    if isinstance(left, Truth) and isinstance(right, Literal):
        raise FilterSyntaxError("TRUE or FALSE is compared with a number or a string", token.position)
    condition = conditions.equal(left, right)
    return conditions.inversion(condition) if token.kind == "<>" else condition


def _order(token: Token, left: Expression, right: Expression) -> Condition:
    _check_ordered(token, left, right)
    return conditions.order(token.kind, left, right)


def _between(token: Token, operand: Expression, negated: bool, low: Expression, high: Expression) -> Condition:
    _check_ordered(token, operand, low, high)
    # Only BETWEEN itself is checked, and only if both bounds are plain literals; a bound with a sign is not one.
    bounds_known = not negated and isinstance(low, Literal) and isinstance(high, Literal)
    if bounds_known and conditions.order("<", high, low).evaluate({}):
        raise FilterSyntaxError("the lower bound of BETWEEN lies above the upper one", token.position)
    return conditions.between(operand, low, high, negated=negated)


def _check_ordered(token: Token, *operands: Expression) -> None:
    for operand in operands:
        if isinstance(operand, Condition):
            raise FilterSyntaxError("a condition is neither less nor greater than anything", token.position)
        if isinstance(operand, Literal) and operand.value_type is ValueType.STRING:
            raise FilterSyntaxError("a string literal is neither less nor greater than anything", token.position)


def _bounded(value: Expression, position: int) -> Expression:
    if value.depth > DEPTH_MAX:
        raise FilterSyntaxError("operators are nested too deeply", position, f"depth_max={DEPTH_MAX}")
    return value


def _unexpected(token: Token, expected: str) -> FilterSyntaxError:
    found = "the end" if token.kind == "end" else quoted(token.text)
    return FilterSyntaxError(f"{expected} is expected", token.position, f"found={found}")


def _as_it_is(value: Expression) -> Expression:
    return value
