"""Typed tables of JSON: the kernel gives the same columns, and the same bodies that do not fit, as Arrow's reader."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

import pyarrow as pa

from reput.kernel import VARIABLE, Kernel
from reput_plugins.spark_export.typed.bodies.json_bodies import JsonBodies

UTC_TIME = pa.timestamp("us", "UTC")
INNER = pa.struct([pa.field("x", pa.float64())])
PLACE = pa.struct([pa.field("city", pa.string()), pa.field("zip", pa.int16()), pa.field("at", INNER)])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("small", pa.int8()),
        pa.field("price", pa.float64()),
        pa.field("ratio", pa.float32()),
        pa.field("paid", pa.bool_()),
        pa.field("name", pa.string()),
        pa.field("time", UTC_TIME),
        pa.field("local", pa.timestamp("us")),
        pa.field("day", pa.date32()),
        pa.field("place", PLACE),
    ]
)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
DAYS = ["2026-01-31", "2024-02-29", "1969-12-31", "1000-01-01", "8999-12-31", "2023-02-29", "0001-01-01", "9999-12-31"]
TIMES = [
    "T10:00:00",
    "T00:00:00.123456",
    "T24:00:00",
    "T10:00",
    "T10",
    "T10:00:60",
    "T10:00:00.1234567",
    "",
    " 23:59:59.5",
]
ZONES = ["", "Z", "+01:00", "-23:59", "+0130", "+01", "+24:00", " Z", "z"]
TIME = st.tuples(st.sampled_from(DAYS), st.sampled_from(TIMES), st.sampled_from(ZONES)).map("".join)
# The kernel leaves exponents of three digits, and the longest numbers, to Arrow's reader.
NUMBER = st.floats(-1e90, 1e90).map(lambda number: number if abs(number) > 1e-90 else 0.0)
FITTING = st.fixed_dictionaries(
    {},
    optional={
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "small": st.none() | st.integers(-128, 127),
        "price": st.none() | NUMBER | st.integers(-(2**70), 2**70),
        "ratio": st.none() | NUMBER.filter(lambda number: abs(number) < 1e30),
        "paid": st.none() | st.booleans(),
        "name": st.none() | TEXT,
        "time": st.sampled_from([None, "2026-01-31T10:00:00Z", "2026-01-31 10:00:00.25+01:30", "2026-01-31"]),
        "local": st.sampled_from([None, "2026-01-31T10:00:00"]),
        "day": st.sampled_from([None, "2026-01-31", "2024-02-29"]),
        "place": st.none()
        | st.fixed_dictionaries(
            {},
            optional={"city": TEXT, "zip": st.integers(-9, 9), "at": st.just({"x": 1.5}) | st.just({}), "more": TEXT},
        ),
        "more": st.recursive(TEXT | st.none() | NUMBER, st.lists, max_leaves=5),
    },
)
# Values, most of which do not fit some column, as they stand in a body.
ODD_VALUES = (
    *("1", "-0", "01", "1.0", "1e3", "1E+02", "1e400", "-", "128", "1e39", "NaN", "Infinity", "-Inf", "1 1", "1,"),
    *(
        "true",
        "tru",
        "null",
        "{}",
        "[]",
        "[1,",
        '{"a":1,"a":2}',
        '{"x":1,"x":2}',
        '{"zip": 40000}',
        '{"at": {"x": "1"}}',
    ),
    *('"\\u0041"', '"\\u0000"', '"\\ud83d\\ude00"', '"\\ud83d"', '"\\ude00"', '"\\x"', '"a\nb"', '"\x7f"', '"é"'),
    *('"1"', '"', '"\\', "9" * 19, "9" * 40, "0." + "1" * 40, "[" * 40 + "]" * 40, "[" * 2000 + "]" * 2000),
)
VALUES = st.one_of(
    st.sampled_from(ODD_VALUES),
    TIME.map(json.dumps),
    TEXT.map(json.dumps),
    st.floats().map(json.dumps),
    st.integers().map(json.dumps),
)
NAMES = st.sampled_from([*SCHEMA.names, "more", "ID"])
SPACE = st.sampled_from(["", "", " ", "\n\t\r", "\x0b"])
FIELD = st.tuples(SPACE, NAMES | st.just("i\\u0064"), SPACE, VALUES).map('{0[0]}"{0[1]}"{0[2]}:{0[3]}'.format)
ENDS = st.sampled_from(["}", "} ", "}x", "}{}", ",}", ""])
ODD = st.tuples(SPACE, st.lists(FIELD, max_size=4).map(",".join), ENDS).map(
    lambda parts: (parts[0] + "{" + parts[1] + parts[2]).encode()
)


def both_ways(bodies: list[bytes], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the decoded *bodies* with the kernel and without it."""
    found = []
    for mode in ("require", "off"):
        monkeypatch.setenv(VARIABLE, mode)
        decoded = JsonBodies(SCHEMA).decode(pa.array([b"skipped", *bodies], pa.binary()).slice(1))
        assert decoded.rows.validate(full=True) is None
        # Reasons of bodies that do not fit are those of the libraries, and may name other numbers.
        found.append((decoded.rows.to_pylist(), decoded.kept.tolist(), [number for number, _ in decoded.refused]))
    return found


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(FITTING, st.booleans(), st.sampled_from([None, 1])), min_size=1, max_size=12))
def test_bodies_that_fit_are_decoded_by_the_kernel(
    required_kernel: Kernel, rows: list[tuple[dict[str, Any], bool, int | None]]
):
    """Every type but lists and decimals, absent fields, nulls, escapes, white space, fields without a column."""
    bodies = [json.dumps(row, ensure_ascii=ascii_only, indent=indent).encode() for row, ascii_only, indent in rows]
    before = required_kernel.counts()["json"]
    with pytest.MonkeyPatch.context() as monkeypatch:
        compiled, plain = both_ways(bodies, monkeypatch)
    assert compiled == plain
    assert required_kernel.counts()["json"] == before + len(bodies)


@settings(max_examples=300, deadline=None)
@given(st.lists(ODD | FITTING.map(lambda row: json.dumps(row).encode()), min_size=1, max_size=3), st.data())
def test_other_bodies_have_the_same_result(required_kernel: Kernel, bodies: list[bytes], data: st.DataObject):
    """Arrow's reader judges what the kernel does not decode: wrong types, repeated fields, damaged bytes."""
    if data.draw(st.booleans()) and bodies[0]:
        at = data.draw(st.integers(0, len(bodies[0]) - 1))
        bodies[0] = bodies[0][:at] + data.draw(st.binary(max_size=2)) + bodies[0][at + 1 :]
    with pytest.MonkeyPatch.context() as monkeypatch:
        compiled, plain = both_ways(bodies, monkeypatch)
    assert repr(compiled) == repr(plain)


def test_bodies_of_a_table_with_lists_are_decoded_without_the_kernel(required_kernel: Kernel):
    """The kernel does not know the type."""
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("items", pa.list_(pa.int64()))])
    before = required_kernel.counts()["json"]
    decoded = JsonBodies(schema).decode(pa.array([b'{"id": 1, "items": [2]}'], pa.binary()))
    assert decoded.rows.to_pylist() == [{"id": 1, "items": [2]}]
    assert required_kernel.counts()["json"] == before
