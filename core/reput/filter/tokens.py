"""SQL92 tokens: splits the text of an expression into words, numbers, strings and signs.

    kind        text
    identifier  [A-Za-z_$][A-Za-z0-9_$]*, case-sensitive, no keyword
    keyword     in any ASCII case; its kind is the word in capitals
    string      '…', a quote inside is doubled; the token's text is the string's value
    integer     0, or [1-9][0-9]* with an optional l or L
    float       1.5, 1., .5, 1e3, 1.5E-3
    sign        = <> > >= < <= ( ) , + -; its kind is itself
    end         the end of the text

The longest match wins. Blanks are space, tab, LF, CR and FF; ``--`` to the end of its line and ``/* */`` are comments,
but ``--`` without a line end after it is two minus signs.

Source: RocketMQ filter, SelectorParser.jj.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from reput.filter.errors import FilterSyntaxError

__all__ = ["Token", "tokens"]

_KEYWORDS = frozenset(
    ["NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"]
)

# Alternatives are tried in order, so the longer of two that can match the same text comes first.
_TOKEN = re.compile(
    r"""
    (?P<blank>      [ \t\n\r\f]+ | /\*[^*]*\*+(?:[^/*][^*]*\*+)*/ )
  | (?P<identifier> [A-Za-z_$][A-Za-z0-9_$]* )
  | (?P<string>     '[^']*(?:''[^']*)*' )
  | (?P<float>      [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
  | (?P<integer>    0 | [1-9][0-9]*[lL]? )
  | (?P<sign>       <> | >= | <= | [=<>(),+-] )
    """,
    re.VERBOSE,
)
_LINE_COMMENT = re.compile(r"(?P<blank>--[^\n\r]*[\n\r])")


class Token(NamedTuple):
    """One word of an expression. `position` counts characters from the start of the text."""

    kind: str
    text: str
    position: int


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of *text* lazily, the last of kind ``end``.

    Raises:
        FilterSyntaxError: the next token cannot be read. A caller that stops before it sees no error, as in RocketMQ.
    """
    position = 0
    # Without a following line end, each of a thousand minus signs would search the rest of the text for one.
    last_line_end = max(text.rfind("\n"), text.rfind("\r"))
    while position < len(text):
        match = _LINE_COMMENT.match(text, position) if position < last_line_end else None
        match = match or _TOKEN.match(text, position)
        if match is None:
            raise FilterSyntaxError("no token can be read here", position, f"character={text[position]!r}")
        kind = str(match.lastgroup)
        if kind != "blank":
            yield _token(kind, match.group(), position)
        position = match.end()
    yield Token("end", "", position)


def _token(kind: str, text: str, position: int) -> Token:
    if kind == "identifier" and text.upper() in _KEYWORDS:
        return Token(text.upper(), text, position)
    if kind == "string":
        return Token(kind, text[1:-1].replace("''", "'"), position)
    if kind == "sign":
        return Token(text, text, position)
    return Token(kind, text, position)
