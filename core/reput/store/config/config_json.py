"""RocketMQ's dialect of JSON, in which a broker keeps topics, groups, offsets and filters.

It is what fastjson 1.2 prints when asked to be pretty: a tab per level, nothing after the colon, fields sorted by name,
no nulls - and maps with integer keys bare and on one line:

    {
    ⇥"offsetTable":{
    ⇥⇥"orders@billing":{0:5,1:7
    ⇥⇥}
    ⇥}
    }

Arrays are on one line. (fastjson breaks the lines of a ``java.util.List``, but no file of a broker's store has one.)
Here a map with integer keys is a dict whose keys are int, so that a file is written as it was read. Reading is as
lenient as fastjson's: bare and single-quoted names, comments and surplus commas are accepted.

RocketMQ 5.5 prints with fastjson 2, which breaks the lines of arrays and of maps with integer keys, too. Both versions
read either, so what 5.5 wrote is written in other lines here.

Source: fastjson 1.2, MapSerializer, CollectionSerializer, SerializeWriter.writeStringWithDoubleQuote, JSONLexerBase.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from reput.errors import DamagedStore

__all__ = ["FormattedObject", "format_config", "format_field", "parse_config"]

BLANK = re.compile(r"(?:\s|/\*.*?\*/|//[^\n]*)*", re.DOTALL)
COMMAS = re.compile(r"(?:,|\s|/\*.*?\*/|//[^\n]*)*", re.DOTALL)
STRING = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"' + r"|'([^'\\]*(?:\\.[^'\\]*)*)'", re.DOTALL)
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
BARE_INTEGER = re.compile(r"-?[0-9]+")
BARE_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
WORDS = {"true": True, "false": False, "null": None}
BYTE_ORDER_MARK = "\ufeff"
# Limit for a number; no file has one of more than 64 bits.
DIGITS_MAX = 64

ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|.)", re.DOTALL)
ESCAPED = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "v": "\v", "0": "\0"}

# fastjson quotes the control characters of ASCII and of Latin-1, and the two line separators of JavaScript.
TO_ESCAPE = re.compile('[\\x00-\\x1f"\\\\\\x7f-\\x9f\\u2028\\u2029]')
ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def parse_config(text: str) -> Any:
    """Return the value that *text* is: dict, list, str, int, float, bool or None. Bare integer keys are int.

    Raises:
        DamagedStore: it is not a value, most likely because it is torn; the error has position and reason.
    """
    parser = Parser(text.removeprefix(BYTE_ORDER_MARK))
    try:
        value = parser.value()
    except RecursionError:
        raise parser.error("values are nested too deeply") from None
    parser.skip(BLANK)
    if parser.position != len(parser.text):
        raise parser.error("there is text after the value")
    return value


class Parser:
    """One walk over one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def error(self, reason: str) -> DamagedStore:
        if self.position == len(self.text):
            reason = "the text ends within a value"
        return DamagedStore(f"{reason}: position={self.position} size={len(self.text)}")

    def skip(self, blank: re.Pattern[str]) -> str:
        """Go behind what *blank* matches and return the character there, empty at the end."""
        match = blank.match(self.text, self.position)
        assert match is not None  # It matches nothing, too.
        self.position = match.end()
        return self.text[self.position : self.position + 1]

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Consume *pattern* if it matches here."""
        match = pattern.match(self.text, self.position)
        if match:
            self.position = match.end()
        return match

    def value(self) -> Any:
        first = self.skip(BLANK)
        if first == "{":
            return self.mapping()
        if first == "[":
            return self.array()
        if string := self.take(STRING):
            return unquoted(string)
        if number := self.take(NUMBER):
            return float(number[0]) if number[1] or number[2] else self.whole(number[0])
        if (word := self.take(BARE_NAME)) and word[0] in WORDS:
            return WORDS[word[0]]
        raise self.error("a value is missing")

    def mapping(self) -> dict[str | int, Any]:
        fields: dict[str | int, Any] = {}
        self.position += 1
        while self.skip(COMMAS) != "}":
            key = self.key()
            if self.skip(BLANK) != ":":
                raise self.error("a colon is missing")
            self.position += 1
            fields[key] = self.value()
            if self.skip(BLANK) not in (",", "}"):
                raise self.error("a comma or a closing brace is missing")
        self.position += 1
        return fields

    def key(self) -> str | int:
        if string := self.take(STRING):
            return unquoted(string)
        if integer := self.take(BARE_INTEGER):
            return self.whole(integer[0])
        if name := self.take(BARE_NAME):
            return name[0]
        raise self.error("a name is missing")

    def whole(self, digits: str) -> int:
        if len(digits) > DIGITS_MAX:
            raise self.error("a number has too many digits")
        return int(digits)

    def array(self) -> list[Any]:
        items = []
        self.position += 1
        while self.skip(COMMAS) != "]":
            items.append(self.value())
            if self.skip(BLANK) not in (",", "]"):
                raise self.error("a comma or a closing bracket is missing")
        self.position += 1
        return items


def unquoted(string: re.Match[str]) -> str:
    """Return the text of a matched string, its escapes resolved."""
    text = string[1] if string[1] is not None else string[2]
    if "\\" not in text:
        return text
    units = ESCAPE.sub(lambda match: unescaped(match[1]), text)
    # Escapes are UTF-16 units; two of them may be the halves of one character.
    return units.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")


def unescaped(escape: str) -> str:
    return chr(int(escape[1:], 16)) if len(escape) > 1 else ESCAPED.get(escape, escape)


class FormattedObject:
    """An object whose fields `format_field` has formatted; `format_config` takes it over as it is.

    An unchanged part of a large file is then not formatted again.
    """

    __slots__ = ("text",)

    def __init__(self, fields: Sequence[str], depth: int) -> None:
        """*depth*: the number of objects that it stands in."""
        end = "\n" + "\t" * depth if fields else ""
        self.text = f"{{{','.join(fields)}{end}}}"


def format_field(name: str, value: Any, depth: int) -> str:
    """Return a field of an object that itself stands in *depth* objects."""
    line = "\n" + "\t" * (depth + 1)
    pieces = [line, quoted(name), ":"]
    write_value(value, line, pieces)
    return "".join(pieces)


def format_config(value: Any) -> str:
    """Return *value* as RocketMQ writes it. Dicts keep their order; their keys are all str or all int.

    None as the value of a name is left out, as fastjson leaves out nulls.
    """
    pieces: list[str] = []
    write_value(value, "\n", pieces)
    return "".join(pieces)


def write_value(value: Any, line: str, pieces: list[str]) -> None:
    """Append *value*; *line* is a new line with the indentation of its parent."""
    match value:
        case dict():
            write_mapping(value, line, pieces)
        case list() | tuple():
            pieces.append("[")
            for number, item in enumerate(value):
                if number:
                    pieces.append(",")
                write_value(item, line, pieces)
            pieces.append("]")
        case str():
            pieces.append(quoted(value))
        case None:
            pieces.append("null")
        case bool():
            pieces.append("true" if value else "false")
        case int() | float():
            pieces.append(repr(value))
        case FormattedObject():
            pieces.append(value.text)
        case _:
            raise TypeError(f"not a value of RocketMQ's JSON: {type(value).__name__}")


def write_mapping(fields: dict[Any, Any], line: str, pieces: list[str]) -> None:
    inner_line = line + "\t"
    pieces.append("{")
    separator = ""
    for key, value in fields.items():
        if value is None:
            continue
        pieces.append(separator)
        separator = ","
        if isinstance(key, int):
            pieces.append(f"{key}:")
        else:
            pieces += (inner_line, quoted(key), ":")
        write_value(value, inner_line, pieces)
    if separator:
        pieces.append(line)
    pieces.append("}")


def quoted(text: str) -> str:
    """Return *text* in double quotes; an unpaired surrogate becomes a question mark, as in Java's encoder."""
    encodable = text.encode("utf-8", "replace").decode()
    return f'"{TO_ESCAPE.sub(escaped, encodable)}"'


def escaped(match: re.Match[str]) -> str:
    character = match[0]
    return ESCAPES.get(character) or f"\\u{ord(character):04X}"
