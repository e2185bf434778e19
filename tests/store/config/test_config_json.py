"""RocketMQ's dialect of JSON: written like fastjson, and read as leniently as by fastjson."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from golden_sets import CLEAN_SETS, PART_SETS
from reput.errors import DamagedStore
from reput.store.config.config_json import format_config, parse_config


@pytest.mark.parametrize("name", [name for name in (*CLEAN_SETS, *PART_SETS) if not name.endswith("5.5")])
def test_what_a_broker_wrote_is_written_again_byte_for_byte(name: str, golden_read_only: Callable[[str], Path]):
    """Topics, groups, offsets, filters and everything else below config/, of 4.9 and 5.3 brokers."""
    for path in golden_read_only(name).rglob("config/*.json*"):
        text = path.read_bytes().decode()
        assert format_config(parse_config(text)) == text, path


@pytest.mark.parametrize("name", [name for name in CLEAN_SETS if name.endswith("5.5")])
def test_what_a_broker_of_5_5_wrote_says_the_same_in_other_lines(name: str, golden_read_only: Callable[[str], Path]):
    """It prints with fastjson 2, which reads what fastjson 1 prints."""
    for path in golden_read_only(name).rglob("config/*.json*"):
        value = parse_config(path.read_bytes().decode())
        assert parse_config(format_config(value)) == value


# The output of fastjson 1.2.69 for a bean with these fields.
PRINTED_BY_FASTJSON = """{
\t"a":[1,2],
\t"d":2.0,
\t"e":{},
\t"empty":[],
\t"la":[3],
\t"m":{-4:{},3:{
\t\t\t"k":1
\t\t}
\t},
\t"objs":[{
\t\t"k":2
\t}],
\t"s":["p","q"],
\t"t":"\\u0000\\u0007\\b\\t\\n\\u000B\\f\\r\\u000E\\u001F !\\"#/[\\\\]~\\u007F\\u0080\\u009F\xa0\u2027",
\t"u":"\\u2028\\u2029\u202a😀\ufeff'",
\t"a\\"b\\t\\u2028":""
}"""
BEAN: dict[str, Any] = {
    "a": [1, 2],
    "d": 2.0,
    "e": {},
    "empty": [],
    "la": [3],
    "m": {-4: {}, 3: {"k": 1}},
    "objs": [{"k": 2}],
    "s": ["p", "q"],
    "t": '\0\a\b\t\n\v\f\r\x0e\x1f !"#/[\\]~\x7f\x80\x9f\xa0\u2027',
    "u": "\u2028\u2029\u202a😀\ufeff'",
    'a"b\t\u2028': "",
}


def test_values_are_printed_as_fastjson_prints_them():
    """Empty and nested maps, arrays, every kind of character."""
    assert format_config(BEAN) == PRINTED_BY_FASTJSON


def test_what_fastjson_printed_is_read():
    """Keys of integer maps come back as integers."""
    assert parse_config(PRINTED_BY_FASTJSON) == BEAN


def test_nulls_are_left_out():
    """fastjson omits null fields; in an array, null is an element."""
    assert format_config({"a": None, "b": [None, True, False], 3: None}) == '{\n\t"b":[null,true,false]\n}'
    assert format_config({"a": None}) == "{}"


def test_an_unpaired_surrogate_becomes_a_question_mark():
    """Like in Java's encoder: the file is valid UTF-8 whatever a name contains."""
    assert format_config("a\ud800b") == '"a?b"'


def test_only_json_values_are_written():
    """Bytes, for example, are a mistake of the program."""
    with pytest.raises(TypeError, match="not a value of RocketMQ's JSON: bytes"):
        format_config({"a": b""})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{0:5,"1":7}', {0: 5, "1": 7}),
        ("{'a':'it\\'s'}", {"a": "it's"}),
        ("{a_1:1,$b:2}", {"a_1": 1, "$b": 2}),
        ('{"a":1,}', {"a": 1}),
        ('{"a":1,,"b":2}', {"a": 1, "b": 2}),
        ("[1,2,]", [1, 2]),
        ('{/* one */"a":1} // two', {"a": 1}),
        ('{"a":"\\x41\\u4e2d\\ud83d\\ude00\\/"}', {"a": "A中😀/"}),
        ("{-1:-2,3:1.5e3}", {-1: -2, 3: 1500.0}),
        (" [true,false,null] ", [True, False, None]),
        ('{"a":1,"a":2}', {"a": 2}),
        ("\ufeff{0:1}", {0: 1}),
    ],
)
def test_reading_is_lenient(text: str, expected: object):
    """Hand-written files and other programs' output are accepted, as by fastjson."""
    assert parse_config(text) == expected


def test_every_torn_file_is_noticed():
    """No prefix of a file is valid, wherever it was torn."""
    for size in range(len(PRINTED_BY_FASTJSON)):
        with pytest.raises(DamagedStore, match="position="):
            parse_config(PRINTED_BY_FASTJSON[:size])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the text ends within a value"),
        ("\0\0\0", "a value is missing"),
        ('{"a" 1}', "a colon is missing"),
        ('{"a":1 "b":2}', "a comma or a closing brace is missing"),
        ("[1 2]", "a comma or a closing bracket is missing"),
        ("{[]:1}", "a name is missing"),
        ('{"a":word}', "a value is missing"),
        ('{"a":1} x', "there is text after the value"),
        pytest.param('{"a":' * 100_000, "values are nested too deeply", id="deep objects"),
        pytest.param("[" * 100_000, "values are nested too deeply", id="deep lists"),
        pytest.param('{"a":' + "9" * 5_000 + "}", "a number has too many digits", id="long number"),
        pytest.param("{" + "9" * 5_000 + ":1}", "a number has too many digits", id="long key"),
        pytest.param('{"a":"' + "x" * 1_000_000, "a value is missing", id="long text without an end"),
    ],
)
def test_what_is_no_json_is_refused(text: str, reason: str):
    """With the position and the reason."""
    with pytest.raises(DamagedStore, match=f"{reason}: position="):
        parse_config(text)
