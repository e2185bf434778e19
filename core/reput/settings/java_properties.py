"""The syntax of Java ``.properties`` files, the format of a broker's own configuration.

A line is a name and a value, separated by ``=``, ``:`` or white space. ``#`` and ``!`` begin a comment line. A line
that ends in an odd number of backslashes continues in the next one, whose leading white space is ignored. A backslash
quotes the character after it, except in ``\\t \\n \\r \\f`` and ``\\uXXXX``. The bytes are ISO 8859-1.

Source: java.util.Properties.load.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from reput.errors import ConfigError

__all__ = ["parse_properties"]

WHITE_SPACE = " \t\f"
CONTROL_CHARACTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
UNICODE_ESCAPE = re.compile(r"[0-9A-Fa-f]{4}")


def parse_properties(data: bytes) -> list[tuple[str, str, int]]:
    """Return name, value and line number of every property, in file order, including repeated names.

    Raises:
        ConfigError: a ``\\u`` is not followed by four hex digits.
    """
    properties = []
    for line, number in logical_lines(data.decode("iso-8859-1")):
        name_end, value_start = split(line)
        properties.append((unescape(line[:name_end], number), unescape(line[value_start:], number), number))
    return properties


def logical_lines(text: str) -> Iterator[tuple[str, int]]:
    """Yield each line that is neither blank nor a comment, continuations joined, with the number of its first line."""
    lines = iter(enumerate(re.split(r"\r\n|\n|\r", text), start=1))
    for number, natural_line in lines:
        line = natural_line.lstrip(WHITE_SPACE)
        if not line or line[0] in "#!":
            continue
        while ends_in_continuation(line):
            _, following = next(lines, (0, ""))
            line = line[:-1] + following.lstrip(WHITE_SPACE)
        yield line, number


def ends_in_continuation(line: str) -> bool:
    """Tell whether the last backslash of *line* is not quoted itself."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def split(line: str) -> tuple[int, int]:
    """Return where the name ends and where the value starts."""
    position = 0
    while position < len(line) and line[position] not in "=:" + WHITE_SPACE:
        position += 2 if line[position] == "\\" else 1
    name_end = min(position, len(line))
    rest = line[name_end:].lstrip(WHITE_SPACE)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(WHITE_SPACE)
    return name_end, len(line) - len(rest)


def unescape(text: str, line_number: int) -> str:
    """Return *text* with its escapes resolved."""
    if "\\" not in text:
        return text
    units = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\":
            units.append(character)
            continue
        escaped = text[position : position + 1]
        position += 1
        if escaped == "u":
            digits = UNICODE_ESCAPE.match(text, position)
            if not digits:
                raise ConfigError(f"\\u takes four hex digits: text={text!r} line={line_number}")
            units.append(chr(int(digits[0], 16)))
            position += 4
        else:
            units.append(CONTROL_CHARACTERS.get(escaped, escaped))
    # Java's escapes are UTF-16 units; two of them may be the halves of one character.
    return "".join(units).encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")
