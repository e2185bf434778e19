"""Frames: both forms of the header, byte for byte, and what is no frame."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput.remoting.remoting_command import (
    FRAME_SIZE_MAX,
    FrameError,
    RemotingCommand,
    SerializeType,
    decode_frame,
    encode_frame,
    next_opaque,
)

# A request for the route of TBW102, as the Java client 4.9.8 sends it.
JAVA_ROUTE = bytes.fromhex("0000008b00000087") + (
    b'{"code":105,"extFields":{"topic":"TBW102"},"flag":0,"language":"JAVA","opaque":7,'
    b'"serializeTypeCurrentRPC":"JSON","version":409}'
).ljust(0x87)
# code 105, JAVA, version 409, opaque 7, flag 0, no remark, one field.
BINARY_ROUTE = bytes.fromhex(
    "00000028 01000024 0069 00 0199 00000007 00000000 00000000 0000000f 0005 746f706963 00000004 54425731"
)

texts = st.text(st.characters(codec="utf-8"))
commands = st.builds(
    RemotingCommand,
    code=st.integers(-(2**15), 2**15 - 1),
    ext_fields=st.dictionaries(texts, texts.filter(bool)),
    body=st.binary(max_size=200),
    remark=st.none() | texts.filter(bool),
    opaque=st.integers(-(2**31), 2**31 - 1),
    flag=st.integers(0, 3),
    language=st.sampled_from(["JAVA", "GO", "PYTHON", "OTHER"]),
    version=st.integers(0, 2**15 - 1),
    serialize_type=st.sampled_from(SerializeType),
)


def framed(header: bytes, body: bytes = b"", serialize_type: int = 0) -> bytes:
    """Return a frame without its first word."""
    return (serialize_type << 24 | len(header)).to_bytes(4, "big") + header + body


def test_a_request_of_the_java_client_is_read():
    """The header's unknown members are ignored."""
    command = decode_frame(JAVA_ROUTE[4:])
    assert (command.code, command.opaque, command.language, command.version) == (105, 7, "JAVA", 409)
    assert command.ext_fields == {"topic": "TBW102"}
    assert command.serialize_type is SerializeType.JSON
    assert not command.is_response
    assert not command.is_oneway


def test_a_binary_request_is_read():
    """RocketMQ's own form holds the same fields."""
    command = decode_frame(BINARY_ROUTE[4:])
    assert (command.code, command.opaque, command.language, command.version) == (105, 7, "JAVA", 409)
    assert command.ext_fields == {"topic": "TBW1"}
    assert command.serialize_type is SerializeType.ROCKETMQ


def test_a_json_answer_is_these_bytes():
    """Its extFields are there even if they are empty, and a remark is not if there is none."""
    request = decode_frame(JAVA_ROUTE[4:])
    answer = RemotingCommand(0, body=b"[]").response_to(request)
    header = (
        b'{"code":0,"extFields":{},"flag":1,"language":"PYTHON","opaque":7,'
        b'"serializeTypeCurrentRPC":"JSON","version":479}'
    )
    whole = b"".join(encode_frame(answer))
    assert whole == (4 + len(header) + 2).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + b"[]"


def test_a_binary_answer_is_these_bytes():
    """A request in the binary form is answered in it."""
    answer = RemotingCommand(1, {"k": "v"}, remark="no").response_to(decode_frame(BINARY_ROUTE[4:]))
    assert b"".join(encode_frame(answer)) == bytes.fromhex(
        "00000023 0100001f 0001 03 01df 00000007 00000001 00000002 6e6f 00000008 0001 6b 00000001 76"
    )


@pytest.mark.slow
@pytest.mark.newest_python
@given(commands)
def test_what_is_encoded_is_decoded(command):
    """Every field survives, in both forms."""
    whole = b"".join(encode_frame(command))
    assert int.from_bytes(whole[:4], "big") == len(whole) - 4
    assert decode_frame(memoryview(whole)[4:]) == command


@given(st.binary(max_size=300))
def test_other_bytes_are_a_command_or_an_error(data):
    """Never any other exception."""
    for start in (b"", framed(data), framed(data, serialize_type=1), framed(b"", data)):
        with contextlib.suppress(FrameError):
            decode_frame(start + data)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)
members = st.dictionaries(
    st.sampled_from(["code", "flag", "opaque", "language", "version", "remark", "extFields", "other"]), values
)


@pytest.mark.slow
@pytest.mark.newest_python
@given(members)
def test_any_json_is_a_command_or_an_error(fields):
    """Whatever the types of its members; what is a command can be answered."""
    try:
        command = decode_frame(framed(json.dumps(fields).encode("utf-8", "surrogatepass")))
    except FrameError:
        return
    encode_frame(RemotingCommand(0, command.ext_fields).response_to(command))


@given(st.binary(max_size=100), st.integers(0, 2**24 - 1))
def test_any_binary_header_is_a_command_or_an_error(data, size):
    """Sizes within it that are beyond its end included."""
    head = bytes.fromhex("0069 00 0199 00000007 00000000")
    for header in (
        head + data,
        head + size.to_bytes(4, "big") + data,
        head + bytes(4) + size.to_bytes(4, "big") + data,
    ):
        try:
            command = decode_frame(framed(header, serialize_type=1))
        except FrameError:
            continue
        encode_frame(RemotingCommand(0, command.ext_fields).response_to(command))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"a": 3, "b": True, "c": "x"}, {"a": "3", "b": "true", "c": "x"}),
        ({"a": None, "b": 1.5}, {"b": "1.5"}),
        ({"a": 2**70}, {"a": str(2**70)}),
        ({"a": {"b": [1]}}, {"a": '{"b":[1]}'}),
    ],
)
def test_values_of_other_types_become_text(fields, expected):
    """As Java makes it of them; null is left out."""
    assert decode_frame(framed(json.dumps({"code": 1, "extFields": fields}).encode())).ext_fields == expected


def test_members_that_are_null_are_as_if_missing():
    """Java leaves them out, other clients may not."""
    header = b'{"code":1,"language":null,"opaque":null,"flag":null,"remark":null,"version":null,"extFields":null}'
    command = decode_frame(framed(header))
    assert (command.opaque, command.flag, command.language, command.ext_fields) == (0, 0, "OTHER", {})


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "has no code"),
        (b"{}", "has no code"),
        (b'{"code":"1"}', "has no code"),
        (b'{"code":true}', "wrong type"),
        (b'{"code":1.5}', "has no code"),
        (b'{"code":2147483648}', "more than 32 bits"),
        (b'{"code":1,"opaque":-2147483649}', "more than 32 bits"),
        (b'{"code":1,"flag":4294967296}', "more than 32 bits"),
        (b'{"code":1' + b"0" * 5000 + b"}", ""),
        (b'{"code":1,"extFields":[]}', "not an object"),
        (b'{"code":1,"extFields":{"a":' + b"[" * 100_000, "not JSON"),
        (b'{"code":1,"extFields":' + b'{"a":' * 100_000, "not JSON"),
    ],
    ids=lambda value: str(value[:40]) if isinstance(value, bytes) else "",
)
def test_a_header_that_is_none_is_refused(header, text):
    """With one sentence; the connection is closed by it."""
    with pytest.raises(FrameError) as caught:
        decode_frame(framed(header))
    assert text in str(caught.value)


def test_a_field_that_is_no_json_is_refused_at_its_first_use():
    """Fields are decoded when a processor asks for them; the client gets an error, the connection stays."""
    header = b'{"code":1,"extFields":{"a":1e999}}'
    command = decode_frame(len(header).to_bytes(4, "big") + header)
    with pytest.raises(FrameError, match="cannot be decoded"):
        dict(command.ext_fields)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "no header"),
        (b"\0\0\0", "no header"),
        (b"\0\0\0\x05{}", "longer than its frame"),
        (b"\x00\x0f\xff\xff{}", "longer than its frame"),
        (b"\x00\xff\xff\xff{}", "too large"),
        (b"\x02\0\0\x02{}", "unknown form"),
        (b"\xff\0\0\x00", "unknown form"),
        (b"\x01\0\0\x02{}", "ends too early"),
    ],
)
def test_a_frame_whose_sizes_contradict_each_other_is_refused(data, text):
    """Before its header is read."""
    with pytest.raises(FrameError, match=text):
        decode_frame(data)


@pytest.mark.parametrize(
    ("rest", "text"),
    [
        ("ffffffff 00000000", "remark is longer"),
        ("00000009 00000000", "remark is longer"),
        ("00000000 00000009", "fields are longer"),
        ("00000000 ffffffff", "fields are longer"),
        ("00000000 00000006 0009 00000000", "name is longer"),
        ("00000000 00000006 ffff 00000000", "name is longer"),
        ("00000000 00000006 0000 00000009", "value is longer"),
        ("00000000 00000006 0000 ffffffff", "value is longer"),
        ("00000000 00000002 0000", "ends too early"),
        ("00000001 ff 00000000", "not UTF-8"),
    ],
)
def test_a_binary_header_that_is_none_is_refused(rest, text):
    """Each size in it is compared with what is there."""
    header = bytes.fromhex("0069 00 0199 00000007 00000000" + rest)
    with pytest.raises(FrameError, match=text):
        decode_frame(framed(header, serialize_type=1))


def test_an_unknown_language_is_another():
    """It says what the peer is written in, and decides nothing."""
    header = bytes.fromhex("0069 7f 0199 00000007 00000000 00000000 00000000")
    assert decode_frame(framed(header, serialize_type=1)).language == "OTHER"


def test_a_field_without_value_is_null():
    """The binary form has no other way to say so."""
    header = bytes.fromhex("0069 00 0199 00000007 00000000 00000000 00000007 0001 61 00000000")
    assert decode_frame(framed(header, serialize_type=1)).ext_fields == {}


def test_a_frame_beyond_what_peers_take_is_not_sent():
    """RocketMQ's peers would close the connection."""
    with pytest.raises(FrameError, match="too large"):
        encode_frame(RemotingCommand(0, body=bytes(FRAME_SIZE_MAX - 100)))


def test_a_body_in_pieces_is_sent_as_it_is():
    """Nothing is copied."""
    pieces = [b"ab", b"cd"]
    frame = encode_frame(RemotingCommand(0, body=pieces))
    assert frame[1:] == pieces
    assert decode_frame(b"".join(frame)[4:]).body == b"abcd"
    assert RemotingCommand(0, body=pieces).body_bytes == b"abcd"


def test_numbers_of_requests_differ():
    """They match answers with requests."""
    assert next_opaque() != next_opaque()
