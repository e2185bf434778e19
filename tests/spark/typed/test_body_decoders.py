"""Each decoder of bodies against an independent one: json, fastavro, google.protobuf, msgspec; csv against csv."""

from __future__ import annotations

import csv
import datetime
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("deltalake")

import pyarrow as pa

from reput_plugins.spark_export.typed.bodies.body_decoders import make_decoder
from reput_plugins.spark_export.typed.bodies.inference import infer_json, infer_msgpack
from reput_plugins.spark_export.typed.bodies.json_bodies import JsonBodies
from reput_plugins.spark_export.typed.bodies.msgpack_bodies import MsgpackBodies
from reput_plugins.spark_export.typed.bodies.text_bodies import CsvBodies, TextBodies
from reput_plugins.spark_export.typed.resolved_table import ResolvedTable
from spark.typed_formats import decode, resolved

LONG_MAX = 2**63 - 1
EXAMPLES = settings(max_examples=60, deadline=None)

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("price", pa.float64()),
        pa.field("paid", pa.bool_()),
        pa.field("name", pa.string()),
        pa.field("place", pa.struct([pa.field("city", pa.string()), pa.field("zip", pa.int32())])),
        pa.field("items", pa.list_(pa.field("element", pa.int64()))),
    ]
)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
LONGS = st.integers(-(2**63), LONG_MAX)
ROWS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.none() | LONGS,
        "price": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "paid": st.none() | st.booleans(),
        "name": st.none() | TEXT,
        "place": st.none() | st.fixed_dictionaries({}, optional={"city": TEXT, "zip": st.integers(-9, 9)}),
        "items": st.none() | st.lists(st.none() | LONGS, max_size=3),
    },
)


def whole(row: dict[str, Any], schema: pa.Schema = SCHEMA) -> dict[str, Any]:
    """Return a row with every column of the schema."""
    found = {}
    for field in schema:
        value = row.get(field.name)
        if value is not None and pa.types.is_struct(field.type):
            value = whole(value, pa.schema(list(field.type)))
        found[field.name] = value
    return found


@EXAMPLES
@given(st.lists(st.tuples(ROWS, st.sampled_from([None, 1]), st.booleans()), min_size=1, max_size=8))
def test_json_is_read_as_the_standard_library_reads_it(rows: list[tuple[dict[str, Any], int | None, bool]]):
    """With and without white space, and with fields that the schema does not name."""
    bodies = [
        b" " * bool(indent) + json.dumps({**row, "more": [row]} if further else row, indent=indent).encode()
        for row, indent, further in rows
    ]
    found = decode(JsonBodies(SCHEMA), bodies)
    assert found.refused == []
    assert found.rows.to_pylist() == [whole(json.loads(body)) for body in bodies]


NOT_ONE_OBJECT = [
    b"",
    b" ",
    b"null",
    b"1",
    b'"{}"',
    b"[]",
    b'[{"id":1}]',
    b'{"id":1}{"id":2}',
    b'{"id":1}\n{"id":2}',
    b'{"id":1},{"id":2}',
    b'{"id":1},"name":{}',
    b'{"id":1}}',
    b'{"id":1}}\n{"place":{}',
    b'{"id":1',
    b'{"id":1}x',
    b"{,}",
    b'{"id":1,}',
    b'{"id":1,"id":2}',
    b'{"name":"\xff"}',
    b'{"more":"\xff"}',
    b'{"name":"\\ud800"}',
    b'{"name":"a\nb"}',
    b'{"id":9223372036854775808}',
    b'{"id":1.5}',
    b'{"id":"1"}',
    b'{"id":true}',
    b'{"paid":1}',
    b'{"price":"1"}',
    b'{"price":1e999}',
    b'{"name":1}',
    b'{"place":[]}',
    b'{"place":{"zip":2147483648}}',
    b'{"items":{}}',
    b'{"items":["1"]}',
    b"\xef\xbb\xbf{}",
    b"\0",
]


def test_json_that_is_no_row_is_refused_wherever_it_stands():
    """Between rows that fit, which are kept."""
    bodies = [body for bad in NOT_ONE_OBJECT for body in (b'{"id":7}', bad, b"{}")]
    found = decode(JsonBodies(SCHEMA), bodies)
    assert [bodies[number] for number, _ in found.refused] == NOT_ONE_OBJECT
    assert all(reason for _, reason in found.refused)
    assert found.rows["id"].to_pylist() == [7, None] * len(NOT_ONE_OBJECT)


@EXAMPLES
@given(st.lists(st.binary(max_size=12) | st.sampled_from([*NOT_ONE_OBJECT, b'{"id":1}', b"{}"]), max_size=12))
def test_whether_a_body_fits_does_not_depend_on_its_neighbours(bodies: list[bytes]):
    """Alone or with others, a body has the same row or none."""
    together = decode(JsonBodies(SCHEMA), bodies)
    alone = [decode(JsonBodies(SCHEMA), [body]) for body in bodies]
    assert together.kept.tolist() == [number for number, found in enumerate(alone) if len(found.kept)]
    assert together.rows.to_pylist() == [row for found in alone for row in found.rows.to_pylist()]


LENIENT = [
    (pa.float64(), [b"NaN", b"-Infinity", b"1", b"-0", b"1E5"]),
    (pa.timestamp("us", "UTC"), [b'"2026-01-31"', b'"2026-01-31 10"', b'"2026-01-31T10:00:00.123456-02:30"']),
    (pa.date32(), [b'"2026-01-31"', b'"2026-01-31T00:00:00Z"', b'"2026-01-31T02:00:00+02:00"']),
    (pa.decimal128(5, 2), [b"1.25", b'"1.25"', b"null"]),
    (pa.string(), [b'"\\ud83d\\ude00"', b'"\x7f"', b"null"]),
    (pa.list_(pa.int64()), [b"[]", b"[1,null]", b"[" + b"9" * 18 + b"]"]),
]


@pytest.mark.parametrize(("kind", "values"), LENIENT)
def test_json_beside_a_bad_body_fits_as_it_does_alone(kind: pa.DataType, values: list[bytes]):
    """The look that finds bad bodies quickly refuses nothing that the reader takes."""
    deep = b'{"b":' + b"[" * 2000 + b"]" * 2000 + b"}"
    bodies = [b'{\x0b"a":%s}' % value for value in values] + [deep]
    decoder = JsonBodies(pa.schema([("a", kind)]))
    alone = [decode(decoder, [body]).rows for body in bodies]
    found = decode(decoder, [b"no", *bodies, b'{"a":"x"'])
    assert [number for number, _ in found.refused] == [0, len(bodies) + 1]
    assert repr(found.rows.to_pylist()) == repr(pa.concat_tables(alone).to_pylist())


def test_bad_json_does_not_slow_the_good(monkeypatch: pytest.MonkeyPatch):
    """However many bodies do not fit, the reader goes over the others once."""
    schema = pa.schema(
        [("id", pa.int32()), ("at", pa.timestamp("us")), ("day", pa.date32()), ("names", pa.list_(pa.string()))]
    )
    bad = [
        b"",
        b"no",
        b'{"id":"1"}',
        b'{"id":1.5}',
        b'{"id":3000000000}',
        b'{"at":"soon"}',
        b'{"names":[1]}',
        b"{\xff}",
    ]
    bad += [b'{"at":"2026-01-31T10:00:00.123456789Z"}', b'{"day":"2026-01-31T10:00:00Z"}', b'{"x":"\xff"}', b'{"id":1']
    bodies = [bad[number // 3 % len(bad)] if number % 3 == 0 else b'{"id":%d}' % number for number in range(900)]
    decoder, sizes = JsonBodies(schema), []
    attempt = decoder.attempt
    monkeypatch.setattr(decoder, "attempt", lambda part: sizes.append(len(part)) or attempt(part))
    found = decode(decoder, bodies)
    assert [number for number, _ in found.refused] == list(range(0, 900, 3))
    assert sizes == [900, 600]


def test_json_has_dates_times_and_decimals():
    """A date with a time in it is none, and a decimal is not rounded."""
    schema = pa.schema(
        [("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("money", pa.decimal128(9, 2)), ("n", pa.int8())]
    )
    good = [b'{"day":"2026-01-31","at":"2026-01-31T12:00:00.5+02:00","money":12.5}', b'{"money":"1.25","n":-128}']
    bad = [b'{"day":"2026-01-31T10:00:00"}', b'{"at":5}', b'{"money":1.255}', b'{"n":128}', b'{"day":"x"}']
    found = decode(JsonBodies(schema), [*good, *bad])
    assert found.rows.to_pylist() == [
        {
            "day": datetime.date(2026, 1, 31),
            "at": datetime.datetime(2026, 1, 31, 10, 0, 0, 500000, datetime.UTC),
            "money": Decimal("12.50"),
            "n": None,
        },
        {"day": None, "at": None, "money": Decimal("1.25"), "n": -128},
    ]
    assert len(found.refused) == len(bad)


def test_fields_of_json_are_inferred_from_all_bodies_that_are_objects():
    """Also from those that come later; a whole number and a broken one make a broken one."""
    bodies = [b'{"a":1}', b"no", b'{"a":1.5,"b":"2026-01-31T10:00:00Z","c":null}', b'{"d":{"e":[true]}}']
    found = infer_json(pa.array(bodies, pa.binary()))
    assert {field.name: str(field.type) for field in found} == {
        "a": "double",
        "b": "string",
        "d": "struct<e: list<element: bool>>",
    }


CSV_SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("money", pa.decimal128(9, 2))])


@EXAMPLES
@given(st.lists(st.tuples(LONGS, st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8))))
def test_csv_is_read_as_the_standard_library_writes_it(rows: list[tuple[int, str]]):
    """Quotes, delimiters and line ends in values included."""
    bodies = []
    for number, name in rows:
        text = io.StringIO(newline="")
        csv.writer(text, quoting=csv.QUOTE_STRINGS if hasattr(csv, "QUOTE_STRINGS") else csv.QUOTE_ALL).writerow(
            (number, name, "1.50")
        )
        bodies.append(text.getvalue().encode())
    found = decode(CsvBodies(CSV_SCHEMA, ","), bodies)
    assert found.refused == []
    assert found.rows["id"].to_pylist() == [number for number, _ in rows]
    assert found.rows["name"].to_pylist() == [name for _, name in rows]


def test_bad_csv_does_not_slow_the_good(monkeypatch: pytest.MonkeyPatch):
    """The reader goes over the other records once, and a value beside bad ones fits as it does alone."""
    schema = pa.schema([("id", pa.int64()), ("price", pa.float64()), ("name", pa.string())])
    bad = [b"", b"1", b"1,2", b"1,2,3,4", b"x,1,y", b"1.5,1,y", b"1,x1,y", b"1,1e,y", b"1,1,\xff"]
    good = [b"1,2,x", b" 1 , 2 ,x", b",,", b"-1,1e-3,x", b'1,nan,"a,b"', b"1,.5,\r\n", b"0x1f,-inf,", b'"1","2","x\ny"']
    bodies = [body for number in range(90) for body in (bad[number % len(bad)], good[number % len(good)])]
    decoder, sizes = CsvBodies(schema, ","), []
    attempt = decoder.attempt
    alone = pa.concat_tables([decode(decoder, [body]).rows for body in bodies[1::2]])
    monkeypatch.setattr(decoder, "attempt", lambda part: sizes.append(len(part)) or attempt(part))
    found = decode(decoder, bodies)
    assert [number for number, _ in found.refused] == list(range(0, 180, 2))
    assert repr(found.rows.to_pylist()) == repr(alone.to_pylist())
    assert sizes == [180, 90]


def test_csv_that_is_not_one_record_is_refused():
    """With a reason that counts its values."""
    bad = [b"", b"1,x", b"1,x,2,3", b"x,y,1", b"1,a,1\n2,b,2", b'1,"a,1', b"\xff,a,1", b"1,a,1.255"]
    found = decode(CsvBodies(CSV_SCHEMA, ","), [b"1,a,", *bad, b"2,,0.5\r\n"])
    assert [number for number, _ in found.refused] == list(range(1, len(bad) + 1))
    assert found.refused[1][1] == "the record has 2 values, the schema 3"
    assert found.rows.to_pylist() == [
        {"id": 1, "name": "a", "money": None},
        {"id": 2, "name": "", "money": Decimal("0.50")},
    ]


@EXAMPLES
@given(st.lists(st.binary(max_size=6)))
def test_text_is_utf_8(bodies: list[bytes]):
    """Anything else is refused."""

    def fits(body: bytes) -> bool:
        try:
            body.decode()
        except UnicodeDecodeError:
            return False
        return True

    found = decode(TextBodies(), bodies)
    assert found.rows["text"].to_pylist() == [body.decode() for body in bodies if fits(body)]


@EXAMPLES
@given(st.lists(ROWS, max_size=6))
def test_msgpack_is_read_as_msgspec_reads_it_without_a_schema(rows: list[dict[str, Any]]):
    """Absent and nil are null."""
    bodies = [msgspec.msgpack.encode(row) for row in rows]
    found = decode(MsgpackBodies(SCHEMA), bodies)
    assert found.refused == []
    assert found.rows.to_pylist() == [whole(msgspec.msgpack.decode(body)) for body in bodies]


def test_msgpack_that_does_not_fit_is_refused_with_its_place():
    """The reason names the field."""
    bad = [b"", b"\xc1", msgspec.msgpack.encode([1]), msgspec.msgpack.encode({"place": {"zip": 2**31}})]
    found = decode(MsgpackBodies(SCHEMA), [*bad, msgspec.msgpack.encode({"id": "1"}), b"\x80", b"\x80\x80"])
    assert [number for number, _ in found.refused] == [0, 1, 2, 3, 4, 6]
    assert "$.place.zip" in found.refused[3][1]


def test_fields_of_msgpack_are_inferred():
    """From maps only."""
    bodies = [msgspec.msgpack.encode(row) for row in ({"a": 1, "b": b"x"}, [1], {"c": {"d": 1.5}, "a": None})]
    found = infer_msgpack(pa.array(bodies, pa.binary()))
    assert {field.name: str(field.type) for field in found} == {
        "a": "int64",
        "b": "binary",
        "c": "struct<d: double>",
    }


AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "count", "type": "int"},
        {"name": "price", "type": ["null", "double"]},
        {"name": "weight", "type": "float"},
        {"name": "paid", "type": "boolean"},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "name", "type": ["string", "null"]},
        {"name": "raw", "type": "bytes"},
        {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "money", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "items", "type": {"type": "array", "items": ["null", "long"]}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {
            "name": "place",
            "type": ["null", {"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string"}]}],
        },
        {"name": "other", "type": ["null", "Place"]},
    ],
}
# The library that decodes by column has these; with the others, bodies are decoded one by one.
COLUMNAR = [field for field in AVRO["fields"] if field["name"] not in ("raw", "mark", "money")]
TIMES = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1))
AVRO_ROWS = st.fixed_dictionaries(
    {
        "id": LONGS,
        "count": st.integers(-(2**31), 2**31 - 1),
        "price": st.none() | st.floats(allow_nan=False),
        "weight": st.floats(width=32, allow_nan=False),
        "paid": st.booleans(),
        "state": st.sampled_from(["NEW", "PAID"]),
        "name": st.none() | TEXT,
        "raw": st.binary(max_size=5),
        "mark": st.binary(min_size=2, max_size=2),
        "at": TIMES.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000, tzinfo=datetime.UTC)),
        "local": TIMES,
        "day": st.dates(),
        "money": st.decimals(-1000, 1000, places=2),
        "items": st.lists(st.none() | LONGS, max_size=3),
        "counts": st.dictionaries(TEXT, st.integers(0, 9), max_size=3),
        "place": st.none() | st.fixed_dictionaries({"city": TEXT}),
        "other": st.none() | st.fixed_dictionaries({"city": TEXT}),
    }
)


def avro_body(row: dict[str, Any], schema: dict[str, Any] = AVRO) -> bytes:
    """Encode a row with fastavro."""
    import fastavro

    output = io.BytesIO()
    fastavro.schemaless_writer(output, fastavro.parse_schema(schema), row)
    return output.getvalue()


@pytest.fixture(scope="module", params=["by column", "by row"])
def avro(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ResolvedTable, Any]:
    """Return a table of Avro, and its schema."""
    pytest.importorskip("pyruhvro")
    pytest.importorskip("fastavro")
    schema = AVRO if request.param == "by row" else {**AVRO, "fields": COLUMNAR}
    return resolved(tmp_path_factory.mktemp("avro"), "order.avsc", json.dumps(schema), format="avro"), schema


@EXAMPLES
@given(rows=st.lists(AVRO_ROWS, min_size=1, max_size=5))
def test_avro_is_read_as_fastavro_reads_it(avro: tuple[ResolvedTable, Any], rows: list[dict[str, Any]]):
    """Every kind of field, null or not."""
    import fastavro

    table, written = avro
    bodies = [avro_body(row, written) for row in rows]
    found = decode(make_decoder(table), bodies)
    assert found.refused == []
    schema = fastavro.parse_schema(written)
    expected = [fastavro.schemaless_reader(io.BytesIO(body), schema) for body in bodies]
    rows_found = [{**row, "counts": dict(row["counts"])} for row in found.rows.to_pylist()]
    assert rows_found == expected


PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Ignored { string text = 1; message Inner { int64 id = 1; } }
enum State { NEW = 0; PAID = 1; }
message Place { string city = 1; }
message Order {
  int64 id = 1;
  int32 count = 2;
  optional double price = 3;
  float weight = 4;
  bool paid = 5;
  State state = 6;
  string name = 7;
  bytes raw = 8;
  google.protobuf.Timestamp at = 9;
  repeated int64 items = 10;
  map<string, int32> counts = 11;
  Place place = 12;
  uint64 big = 13;
  uint32 middle = 14;
  oneof kind { string word = 15; int64 number = 16; }
  repeated Place places = 17;
}
"""


@pytest.fixture(scope="module")
def proto(tmp_path_factory: pytest.TempPathFactory) -> tuple[ResolvedTable, Any]:
    """Return the table of `shop.Order`, and google's class of that message."""
    pytest.importorskip("ptars")
    pytest.importorskip("grpc_tools")
    from google.protobuf import message_factory

    from reput_plugins.spark_export.typed.bodies.protobuf_bodies import Messages

    table = resolved(tmp_path_factory.mktemp("proto"), "order.proto", PROTO, format="protobuf", message="shop.Order")
    return table, message_factory.GetMessageClass(Messages(table.source, "orders").named("shop.Order"))


def proto_row(message: Any) -> dict[str, Any]:
    """Return a message as a row, by google's own access."""
    row = {name: getattr(message, name) for name in ("id", "count", "weight", "paid", "name", "raw", "big", "middle")}
    row["state"] = "PAID" if message.state else "NEW"
    for name in ("price", "word", "number"):
        row[name] = getattr(message, name) if message.HasField(name) else None
    row["at"] = message.at.ToDatetime(datetime.UTC) if message.HasField("at") else None
    row["items"], row["counts"] = list(message.items), dict(message.counts)
    row["place"] = {"city": message.place.city} if message.HasField("place") else None
    row["places"] = [{"city": place.city} for place in message.places]
    return row


PROTO_ROWS = st.fixed_dictionaries(
    {},
    optional={
        "id": LONGS,
        "count": st.integers(-(2**31), 2**31 - 1),
        "price": st.floats(allow_nan=False),
        "weight": st.floats(width=32, allow_nan=False),
        "paid": st.booleans(),
        "state": st.sampled_from([0, 1]),
        "name": TEXT,
        "raw": st.binary(max_size=4),
        "items": st.lists(LONGS, max_size=3),
        "counts": st.dictionaries(TEXT, st.integers(0, 9), max_size=3),
        "place": st.fixed_dictionaries({"city": TEXT}),
        "big": st.integers(0, LONG_MAX),
        "middle": st.integers(0, 2**32 - 1),
        "word": TEXT,
        "places": st.lists(st.fixed_dictionaries({"city": TEXT}), max_size=2),
    },
)


@EXAMPLES
@given(rows=st.lists(st.tuples(PROTO_ROWS, st.none() | st.integers(-(10**9), 10**9)), min_size=1, max_size=5))
def test_protobuf_is_read_as_google_reads_it(proto: tuple[ResolvedTable, Any], rows: list[Any]):
    """Every kind of field; one without presence has its default."""
    table, message_class = proto
    bodies = []
    for row, seconds in rows:
        message = message_class(**row)
        if seconds is not None:
            message.at.seconds = seconds
        bodies.append(message.SerializeToString())
    found = decode(make_decoder(table), bodies)
    assert found.refused == []
    rows_found = [{**row, "counts": dict(row["counts"])} for row in found.rows.to_pylist()]
    assert rows_found == [proto_row(message_class.FromString(body)) for body in bodies]


@EXAMPLES
@given(row=PROTO_ROWS, cut=st.integers(0, 60), noise=st.binary(max_size=20))
def test_protobuf_that_google_refuses_is_refused(
    proto: tuple[ResolvedTable, Any], row: dict[str, Any], cut: int, noise: bytes
):
    """A message that ends too early, that is. Whatever the bytes, nothing raises."""
    from google.protobuf.message import DecodeError

    table, message_class = proto
    body = message_class(**row).SerializeToString()[:cut]
    try:
        message_class.FromString(body)
        expected = [0]
    except DecodeError:
        expected = []
    assert decode(make_decoder(table), [body]).kept.tolist() == expected
    decode(make_decoder(table), [noise, body])


@EXAMPLES
@given(bodies=st.lists(st.binary(max_size=30)))
def test_avro_of_any_bytes_raises_nothing(avro: tuple[ResolvedTable, Any], bodies: list[bytes]):
    """What fastavro cannot read is refused."""
    import fastavro

    table, written = avro
    found = decode(make_decoder(table), bodies)
    schema = fastavro.parse_schema(written)
    for number in found.kept.tolist():
        fastavro.schemaless_reader(io.BytesIO(bodies[number]), schema)


def test_an_unsigned_number_beyond_the_signed_range_is_refused(proto: tuple[ResolvedTable, Any]):
    """Delta has no unsigned numbers."""
    table, message_class = proto
    found = decode(make_decoder(table), [message_class(big=2**63).SerializeToString(), b""])
    assert [number for number, _ in found.refused] == [0]


def test_single_objects_must_name_the_schema_of_the_table(tmp_path: Path):
    """By Avro's fingerprint, which is not guessed around."""
    pytest.importorskip("pyruhvro")
    schema = {"type": "record", "name": "A", "fields": [{"name": "id", "type": "long"}]}
    table = resolved(tmp_path, "a.avsc", json.dumps(schema), format="avro", framing="single_object")
    # CRC-64-AVRO, as the specification's own code computes it.
    crc, table_of = 0xC15D213AA4D7A795, []
    for number in range(256):
        value = number
        for _ in range(8):
            value = value >> 1 ^ (0xC15D213AA4D7A795 & -(value & 1))
        table_of.append(value)
    for byte in b'{"name":"A","type":"record","fields":[{"name":"id","type":"long"}]}':
        crc = crc >> 8 ^ table_of[(crc ^ byte) & 0xFF]
    mark = b"\xc3\x01" + crc.to_bytes(8, "little")
    found = decode(make_decoder(table), [mark + b"\x02", b"\xc3\x01" + bytes(8) + b"\x02", b"\x02", mark, b""])
    assert found.rows.to_pylist() == [{"id": 1}]
    assert [number for number, _ in found.refused] == [1, 2, 3, 4]
