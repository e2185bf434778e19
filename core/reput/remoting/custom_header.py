"""Fields of a command's custom header as values: they are sent as text.

RocketMQ answers a field that is missing or no number with code 1 and the exception's text; so do these.
"""

from __future__ import annotations

from collections.abc import Mapping

from reput.errors import RequestRefused
from reput.remoting.response_code import ResponseCode

__all__ = ["optional_whole", "text", "truth", "whole"]

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
INT_MIN, INT_MAX = -(2**31), 2**31 - 1
# A sign and the digits of the longest number.
DIGITS_MAX = 20


def text(fields: Mapping[str, str], name: str) -> str:
    """Return a field that has to be there.

    Raises:
        RequestRefused: SYSTEM_ERROR; it is missing.
    """
    try:
        return fields[name]
    except KeyError:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the custom field <{name}> is null") from None


def whole(fields: Mapping[str, str], name: str, *, is_long: bool = False) -> int:
    """Return a field that has to be a number of 32 bits, or of 64.

    Raises:
        RequestRefused: SYSTEM_ERROR; it is missing or no such number.
    """
    value = text(fields, name)
    low, high = (LONG_MIN, LONG_MAX) if is_long else (INT_MIN, INT_MAX)
    try:
        # Without a limit, a long text of digits would take long to convert.
        number = int(value) if len(value) <= DIGITS_MAX and value.isascii() and "_" not in value else None
    except ValueError:
        number = None
    if number is None or not low <= number <= high:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f'For input string: "{value:.40}" of the field <{name}>')
    return number


def optional_whole(fields: Mapping[str, str], name: str, default: int, *, is_long: bool = False) -> int:
    """Return a field that may be missing, or *default*.

    Raises:
        RequestRefused: SYSTEM_ERROR; it is no such number.
    """
    return whole(fields, name, is_long=is_long) if name in fields else default


def truth(fields: Mapping[str, str], name: str, default: bool = False) -> bool:
    """Return a field that is true or false, as Java reads it: everything but "true" is false."""
    value = fields.get(name)
    return default if value is None else value.lower() == "true"
