"""Typed access to a command's custom header, whose fields are text.

RocketMQ answers a missing or non-numeric field with code 1 and the exception's text; these functions do the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from reput.errors import RequestRefused
from reput.remoting.response_code import ResponseCode

__all__ = ["optional_whole", "text", "truth", "whole"]

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
INT_MIN, INT_MAX = -(2**31), 2**31 - 1
# Size of the longest number: a sign and its digits.
DIGITS_MAX = 20


def text(fields: Mapping[str, str], name: str) -> str:
    """Return a required field.

    Raises:
        RequestRefused: SYSTEM_ERROR; the field is missing.
    """
    try:
        return fields[name]
    except KeyError:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the custom field <{name}> is null") from None


def whole(fields: Mapping[str, str], name: str, *, is_long: bool = False) -> int:
    """Return a required field as a number of 32 or 64 bits.

    Raises:
        RequestRefused: SYSTEM_ERROR; the field is missing or not such a number.
    """
    value = text(fields, name)
    low, high = (LONG_MIN, LONG_MAX) if is_long else (INT_MIN, INT_MAX)
    try:
        # The limit keeps a long text of digits from taking long to convert.
        number = int(value) if len(value) <= DIGITS_MAX and value.isascii() and "_" not in value else None
    except ValueError:
        number = None
    if number is None or not low <= number <= high:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f'For input string: "{value:.40}" of the field <{name}>')
    return number


def optional_whole(fields: Mapping[str, str], name: str, default: int, *, is_long: bool = False) -> int:
    """Return an optional number, or *default* if it is missing.

    Raises:
        RequestRefused: SYSTEM_ERROR; the field is not such a number.
    """
    return whole(fields, name, is_long=is_long) if name in fields else default


def truth(fields: Mapping[str, str], name: str, default: bool = False) -> bool:
    """Return a boolean field as Java reads it: everything except "true" is false."""
    value = fields.get(name)
    return default if value is None else value.lower() == "true"
