"""Bodies and schemas made to harm: no body may end an export, and none may become a row that readers cannot read."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("deltalake")

import pyarrow as pa

from reput.errors import ConfigError
from reput_plugins.spark_export.typed.bodies.body_decoders import make_decoder
from reput_plugins.spark_export.typed.bodies.inference import DEPTH_MAX, infer_json, infer_msgpack
from reput_plugins.spark_export.typed.bodies.json_bodies import JsonBodies
from reput_plugins.spark_export.typed.bodies.msgpack_bodies import MsgpackBodies
from reput_plugins.spark_export.typed.bodies.text_bodies import CsvBodies
from spark.typed_formats import decode, resolved

ONE_FIELD = pa.schema([("a", pa.int64())])
PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message M { int32 a = 1; N n = 2; google.protobuf.Timestamp at = 3; }
message N { bytes b = 1; }
"""


def avro(*kinds: Any) -> str:
    """Return the schema of a record with fields of these types."""
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(kinds)]
    return json.dumps({"type": "record", "name": "R", "fields": fields})


def zigzag(number: int) -> bytes:
    """Return a number as Avro encodes it."""
    value, encoded = number << 1 ^ number >> 63, b""
    while value & ~0x7F:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def test_deep_groups_of_protobuf_do_not_end_the_process(tmp_path: Path):
    """The library that decodes by column follows unknown groups until the stack is full."""
    pytest.importorskip("ptars")
    pytest.importorskip("grpc_tools")
    decoder = make_decoder(resolved(tmp_path, "m.proto", PROTO, format="protobuf"))
    inner = b"\x53" * 200_000 + b"\x54" * 200_000
    deep = [b"\x53" * 4_000_000, inner, b"\x12" + b"\x80\xb5\x18" + inner]
    found = decode(decoder, [b"\x08\x07", *deep, b"\x08\x07" + b"\x53\x54" * 9_000])
    assert [number for number, _ in found.refused] == [1, 2, 3]
    assert found.rows["a"].to_pylist() == [7, 7]


def test_a_panic_of_the_protobuf_library_is_a_dead_letter(tmp_path: Path):
    """This body has a size of 2**64 - 1 in it."""
    pytest.importorskip("ptars")
    pytest.importorskip("grpc_tools")
    decoder = make_decoder(resolved(tmp_path, "m.proto", PROTO, format="protobuf"))
    found = decode(decoder, [b"\x08\x07", b"\x12" + b"\xff" * 9 + b"\x01"])
    assert [number for number, _ in found.refused] == [1]


def test_a_protobuf_schema_that_the_library_does_not_know_is_refused(tmp_path: Path):
    """With one sentence."""
    pytest.importorskip("ptars")
    pytest.importorskip("grpc_tools")
    with pytest.raises(ConfigError, match="the protobuf schema cannot be used: table=orders"):
        resolved(tmp_path, "m.proto", 'edition = "2023"; message M { int32 a = 1; }', format="protobuf")


def test_times_outside_of_the_calendar_are_dead_letters(tmp_path: Path):
    """Readers in Python fail at such a row, and a partition cannot be named by such a date."""
    pytest.importorskip("ptars")
    pytest.importorskip("grpc_tools")
    pytest.importorskip("pyruhvro")
    decoder = make_decoder(resolved(tmp_path, "m.proto", PROTO, format="protobuf"))
    found = decode(decoder, [b"\x1a\x02\x08\x05", b"\x1a\x0a\x08" + b"\xff" * 8 + b"\x3f"])
    assert [number for number, _ in found.refused] == [1]
    for kind in ({"type": "long", "logicalType": "timestamp-millis"}, {"type": "int", "logicalType": "date"}):
        for further in ([], ["bytes"]):
            decoder = make_decoder(resolved(tmp_path, "r.avsc", avro(kind, *further), format="avro"))
            bodies = [
                zigzag(number) + b"\0" * len(further) for number in (1, 2**31 - 1 if "date" in str(kind) else 2**62)
            ]
            assert [number for number, _ in decode(decoder, bodies).refused] == [1]


def test_avro_text_that_is_not_utf_8_is_a_dead_letter(tmp_path: Path):
    """The library that decodes by column does not check it, and readers of the lake would fail."""
    pytest.importorskip("pyruhvro")
    decoder = make_decoder(resolved(tmp_path, "r.avsc", avro({"type": "array", "items": "string"}), format="avro"))
    found = decode(decoder, [b"\x02\x02x\0", b"\x02\x02\xff\0"])
    assert [number for number, _ in found.refused] == [1]


def test_an_avro_int_that_is_too_long_is_not_cut(tmp_path: Path):
    """It has 41 bits."""
    pytest.importorskip("pyruhvro")
    decoder = make_decoder(resolved(tmp_path, "r.avsc", avro("int", ["null", "int"]), format="avro"))
    found = decode(decoder, [zigzag(-(2**31)) + b"\x02" + zigzag(2**31 - 1), zigzag(2**40) + b"\0"])
    assert found.rows.to_pylist() == [{"f0": -(2**31), "f1": 2**31 - 1}]
    assert [number for number, _ in found.refused] == [1]


def test_avro_decoded_by_row_has_the_columns_that_it_has_by_column(tmp_path: Path):
    """Logical types that are not decoded are their underlying types, also beside bytes."""
    pytest.importorskip("pyruhvro")
    kinds = [
        {"type": "string", "logicalType": "uuid"},
        {"type": "int", "logicalType": "time-millis"},
        {"type": "long", "logicalType": "time-micros"},
        {"type": "long", "logicalType": "timestamp-nanos"},
        {"type": "int", "logicalType": "decimal", "precision": 4},
    ]
    body = zigzag(4) + b"uuid" + b"".join(map(zigzag, (5, 6, 7, 8)))
    by_column = decode(make_decoder(resolved(tmp_path, "a.avsc", avro(*kinds), format="avro")), [body])
    by_row = decode(make_decoder(resolved(tmp_path, "b.avsc", avro(*kinds, "bytes"), format="avro")), [body + b"\0"])
    assert by_column.rows.to_pylist() == [{"f0": "uuid", "f1": 5, "f2": 6, "f3": 7, "f4": 8}]
    assert by_row.rows.drop_columns(["f5"]).to_pylist() == by_column.rows.to_pylist()


@pytest.mark.parametrize(
    "schema",
    [
        avro({"type": "bytes", "logicalType": "decimal", "precision": 50}),
        avro({"type": "bytes", "logicalType": "decimal"}),
        '{"type":"record","name":"R","fields":[{"name":"a"}]}',
        '{"type":"record","name":"R","fields":[{"type":"int"}]}',
        '{"type":"record","name":"R","fields":3}',
        avro({"type": "record", "name": "Empty", "fields": []}),
    ],
)
def test_a_malformed_avro_schema_is_refused(tmp_path: Path, schema: str):
    """With a sentence that names the table."""
    pytest.importorskip("pyruhvro")
    with pytest.raises(ConfigError, match="table=orders"):
        resolved(tmp_path, "r.avsc", schema, format="avro")


def test_a_named_type_is_found_by_the_namespace_in_its_record_s_name(tmp_path: Path):
    """As the specification defines it."""
    pytest.importorskip("pyruhvro")
    schema = json.loads(avro({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "shop.E")) | {"name": "shop.R"}
    found = decode(make_decoder(resolved(tmp_path, "r.avsc", json.dumps(schema), format="avro")), [b"\x02\0"])
    assert found.rows.to_pylist() == [{"f0": "B", "f1": "A"}]


def test_deep_messagepack_is_a_dead_letter():
    """Python's limit of recursion ends no export."""
    found = decode(MsgpackBodies(ONE_FIELD), [b"\x81\xa1b" + b"\x91" * 100_000 + b"\xc0", b"\x81\xa1a\x01"])
    assert [number for number, _ in found.refused] == [0]


@pytest.mark.parametrize("depth", [DEPTH_MAX + 1, 5_000, 1_000_000])
def test_deep_bodies_show_no_field(depth: int):
    """A type of such a depth would end the process."""
    text = b'{"a":1,"b":' + b"[" * depth + b"1" + b"]" * depth + b"}"
    assert infer_json(pa.array([b'{"a":1}', text])) == ONE_FIELD
    packed = b"\x82\xa1a\x01\xa1b" + b"\x91" * depth + b"\x01"
    assert infer_msgpack(pa.array([b"\x81\xa1a\x01", packed])) == ONE_FIELD


def test_values_of_no_type_show_no_field():
    """They do not end the export either."""
    rows = [
        {"a": 1, "ext": msgspec.msgpack.Ext(5, b"x"), "empty": {}, "none": [], "nulls": [None], "numbered": {1: 2}},
        {"a": 2, "mixed": [1, "x"], "A": 3, "inner": {"b": [], "c": 1, "C": 2}},
    ]
    assert str(infer_msgpack(pa.array(list(map(msgspec.msgpack.encode, rows))))) == str(
        pa.schema(
            [
                ("a", pa.int64()),
                ("mixed", pa.list_(pa.field("element", pa.int64()))),
                ("inner", pa.struct([("c", pa.int64())])),
            ]
        )
    )


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**38 - 1])
def test_a_whole_number_beyond_64_bits_is_inferred_as_a_decimal(value: int):
    """As a floating-point number it would lose digits, and so would the numbers in the other bodies."""
    bodies = pa.array([b'{"id":9007199254740993}', b'{"id":%d}' % value])
    found = decode(JsonBodies(infer_json(bodies)), bodies.to_pylist())
    assert found.rows["id"].to_pylist() == [Decimal(9007199254740993), Decimal(value)]


@pytest.mark.parametrize("body", [b'{"a":99999}', b'{"a":{"b":99999}}'])
def test_a_decimal_with_too_many_digits_is_a_dead_letter(body: bytes):
    """Arrow's readers accept it, and write a number that the column's type cannot have."""
    kind: Any = pa.decimal128(5, 2)
    if b"b" in body:
        kind = pa.struct([("b", kind)])
    found = decode(JsonBodies(pa.schema([("a", kind)])), [body, b"{}"])
    assert [number for number, _ in found.refused] == [0]
    found = decode(CsvBodies(pa.schema([("a", pa.decimal128(5, 2))]), ","), [b"99999", b"999.99"])
    assert found.rows.to_pylist() == [{"a": Decimal("999.99")}]


def test_a_number_too_large_for_a_float_is_a_dead_letter():
    """It does not become infinite. A number that is infinite in the body stays it."""
    found = decode(JsonBodies(pa.schema([("a", pa.float32())])), [b'{"a":1e39}', b'{"a":Infinity}', b'{"a":1.5}'])
    assert found.rows["a"].to_pylist() == [float("inf"), 1.5]
    found = decode(MsgpackBodies(pa.schema([("a", pa.float32())])), [msgspec.msgpack.encode({"a": 1e39})])
    assert [number for number, _ in found.refused] == [0]


def test_the_first_and_the_last_day_are_rows(tmp_path: Path):
    """The bounds of the calendar are inside of it."""
    pytest.importorskip("pyruhvro")
    kind = {"type": "int", "logicalType": "date"}
    decoder = make_decoder(resolved(tmp_path, "r.avsc", avro(kind), format="avro"))
    found = decode(decoder, list(map(zigzag, (-719_163, -719_162, 2_932_896, 2_932_897))))
    assert found.rows["f0"].to_pylist() == [datetime.date.min, datetime.date.max]


def test_of_equal_keys_of_a_map_the_last_stays(tmp_path: Path):
    """As protobuf defines it. DuckDB would refuse the whole table. Other maps, null or not, stay as they are."""
    pytest.importorskip("pyruhvro")
    pytest.importorskip("ptars")
    pytest.importorskip("grpc_tools")
    inner = {"type": "record", "name": "I", "fields": [{"name": "m", "type": {"type": "map", "values": "int"}}]}
    schema = avro(["null", {"type": "map", "values": "int"}], {"type": "array", "items": inner})
    x, y = b"\x02x\x02", b"\x02y\x04"
    twice = b"\x06" + x + y + b"\x02x\x06\0"
    bodies = [b"\0\0", b"\x02" + twice + b"\x02" + twice + b"\0", b"\x02\x02" + x + b"\0\0", b"\x02\0\0"]
    found = decode(make_decoder(resolved(tmp_path, "r.avsc", schema, format="avro")), bodies)
    last = [("y", 2), ("x", 3)]
    assert found.rows["f0"].to_pylist() == [None, last, [("x", 1)], []]
    assert found.rows["f1"].to_pylist() == [[], [{"m": last}], [], []]
    proto = 'syntax = "proto3"; message M { map<int32, string> a = 1; }'
    entries = [b"\x0a\x05\x08\x01\x12\x01" + text for text in (b"x", b"y")]
    found = decode(make_decoder(resolved(tmp_path, "m.proto", proto, format="protobuf")), [b"", b"".join(entries)])
    assert found.rows["a"].to_pylist() == [[], [(1, "y")]]
