"""How the text of an expression is divided into tokens."""

from __future__ import annotations

import pytest

from reput.filter import FilterSyntaxError
from reput.filter.tokens import tokens


def kinds_and_texts(text: str) -> list[tuple[str, str]]:
    """Return the tokens of *text* without their positions and without the end."""
    return [(token.kind, token.text) for token in tokens(text)][:-1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", [("identifier", "a")]),
        ("$a_1 _", [("identifier", "$a_1"), ("identifier", "_")]),
        ("nOt NOTE", [("NOT", "nOt"), ("identifier", "NOTE")]),
        ("a<>b", [("identifier", "a"), ("<>", "<>"), ("identifier", "b")]),
        ("<= >= => ==", [(sign, sign) for sign in ("<=", ">=", "=", ">", "=", "=")]),
        ("''", [("string", "")]),
        ("'it''s'", [("string", "it's")]),
        ("'\\n\n--/*'", [("string", "\\n\n--/*")]),
        ("'x'y'z'", [("string", "x"), ("identifier", "y"), ("string", "z")]),
        ("0x10", [("integer", "0"), ("identifier", "x10")]),
        ("017", [("integer", "0"), ("integer", "17")]),
        ("0L 5L 5l5", [("integer", "0"), ("identifier", "L"), ("integer", "5L"), ("integer", "5l"), ("integer", "5")]),
        ("1.5f", [("float", "1.5"), ("identifier", "f")]),
        ("00.5 5. .5 1e3 1.E-05", [("float", part) for part in ("00.5", "5.", ".5", "1e3", "1.E-05")]),
        ("1e 5.e", [("integer", "1"), ("identifier", "e"), ("float", "5."), ("identifier", "e")]),
        ("a.5", [("identifier", "a"), ("float", ".5")]),
        ("- -x", [("-", "-"), ("-", "-"), ("identifier", "x")]),
        ("a -- b\n c", [("identifier", "a"), ("identifier", "c")]),
        ("a -- b\r c", [("identifier", "a"), ("identifier", "c")]),
        ("--b", [("-", "-"), ("-", "-"), ("identifier", "b")]),
        ("a/**/b/***/c/* * / ** */d", [("identifier", name) for name in "abcd"]),
        ("/*/ 1 */ 2", [("integer", "2")]),
        (" \t\n\r\f", []),
    ],
)
def test_the_longest_token_wins(text, expected):
    """Words, numbers, strings and comments end where RocketMQ ends them."""
    assert kinds_and_texts(text) == expected


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("a !", 2),
        ("a = 'x", 4),
        ("''''x'", 5),
        ("/* x", 0),
        ("/*/", 0),
        ("a\x0b", 1),
        ("\ufeffa", 0),
        ("ä", 0),
        (".", 0),
    ],
)
def test_what_is_no_token_is_refused_where_it_stands(text, position):
    """The error has the position, so that a user finds the character."""
    with pytest.raises(FilterSyntaxError) as caught:
        list(tokens(text))
    assert caught.value.position == position
    assert repr(text[position]) in str(caught.value)


def test_a_token_is_read_only_when_it_is_asked_for():
    """Unread text cannot be wrong: the parser stops at the end of the expression."""
    sequence = tokens("a #")
    assert next(sequence).text == "a"
    with pytest.raises(FilterSyntaxError):
        next(sequence)


def test_a_keyword_has_ascii_letters_only():
    """The long s and the Kelvin sign become ASCII letters in upper case, but they are not accepted here."""
    with pytest.raises(FilterSyntaxError):
        list(tokens("iſ"))


def test_a_text_of_minus_signs_is_read_in_one_go():
    """They are not comments, since no line end follows, and the rest is not searched again for each of them."""
    assert sum(token.kind == "-" for token in tokens("a -- b\n" + "-" * 100_000)) == 100_000
