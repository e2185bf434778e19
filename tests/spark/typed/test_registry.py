"""A schema registry: bodies by their own schema, and nothing decided while it does not answer."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("confluent_kafka")
pytest.importorskip("fastavro")

import fastavro
from deltalake import DeltaTable

from reput.errors import ConfigError, DispatcherError
from reput_plugins.spark_export import export
from spark.exporting import without_spark
from written_log import WrittenLog

FIRST = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
SECOND = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "note", "type": ["null", "string"]}, {"name": "id", "type": "int"}],
}
PROTO = 'syntax = "proto3"; message Other { string text = 1; } message Order { int64 id = 1; }'


class SmallRegistry:
    """A registry on this machine: the subject ``orders-value`` with the schemas of the ids 1, 2, ….

    Attributes:
        status: what every answer has instead, if it is not 200.
        asked: the paths that were asked for.
        imported: the texts of further schemas by subject, which all others import.
    """

    def __init__(self) -> None:
        self.schemas: list[tuple[str, str]] = []
        self.status = 200
        self.password: str | None = None
        self.asked: list[str] = []
        self.imported: dict[str, str] = {}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, answer = registry.answer(self.path, self.headers.get("Authorization"))
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *given: Any) -> None:
                """Stay quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def answer(self, path: str, authorization: str | None) -> tuple[int, dict[str, Any]]:
        path = path.partition("?")[0]
        self.asked.append(path)
        if self.status != 200:
            return self.status, {"error_code": self.status, "message": "down"}
        if self.password is not None:
            wanted = "Basic " + base64.b64encode(self.password.encode()).decode()
            if authorization != wanted:
                return 401, {"error_code": 401, "message": "Unauthorized"}
        if path == "/subjects/orders-value/versions/latest" and self.schemas:
            return 200, self.shown(len(self.schemas))
        kind, _, number = path.rpartition("/")
        if kind == "/schemas/ids" and 0 < int(number) <= len(self.schemas):
            return 200, self.shown(int(number))
        subject = path.removeprefix("/subjects/").removesuffix("/versions/1")
        if subject in self.imported:
            return 200, {"subject": subject, "version": 1, "id": 900, "schema": self.imported[subject]}
        return 404, {"error_code": 40403 if kind == "/schemas/ids" else 40401, "message": "not found"}

    def shown(self, number: int) -> dict[str, Any]:
        kind, text = self.schemas[number - 1]
        found = {"subject": "orders-value", "version": number, "id": number, "schema": text}
        found["references"] = [{"name": name, "subject": name, "version": 1} for name in self.imported]
        return found if kind == "AVRO" else {**found, "schemaType": kind}

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    """Return a registry with two schemas."""
    found = SmallRegistry()
    found.schemas = [("AVRO", json.dumps(FIRST)), ("AVRO", json.dumps(SECOND))]
    try:
        yield found
    finally:
        found.close()


def framed(number: int, schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    """Return a body in Confluent's wire format."""
    output = io.BytesIO()
    fastavro.schemaless_writer(output, fastavro.parse_schema(schema), row)
    return b"\0" + number.to_bytes(4, "big") + output.getvalue()


def written(tmp_path: Path, bodies: list[bytes]) -> WrittenLog:
    log = WrittenLog(tmp_path / "store")
    for body in bodies:
        log.append(body)
    log.save()
    return log


def tables_of(registry: SmallRegistry, **keys: Any) -> dict[str, Any]:
    settings = {"max.retries": "0", **keys.pop("client", {})}
    table = {"topic": "orders", "format": "avro", "schema": registry.address, "registry": settings, **keys}
    return {"tables": {"orders": table}}


def rows_of(table: Path) -> list[dict[str, Any]]:
    return DeltaTable(table).to_pyarrow_table().to_pylist()


BODIES = [framed(1, FIRST, {"id": 2**40}), framed(2, SECOND, {"note": "x", "id": 5}), framed(1, FIRST, {"id": 6})]


def test_each_body_is_decoded_by_the_schema_that_it_names(registry: SmallRegistry, tmp_path: Path):
    """The table has the columns of the newest; a number that does not fit them is a dead letter."""
    log = written(tmp_path, BODIES)
    with without_spark():
        export(log.store, tmp_path / "lake", tables=tables_of(registry))
    assert [(row["id"], row["note"]) for row in rows_of(tmp_path / "lake" / "orders")] == [(5, "x"), (6, None)]
    assert [row["body"] for row in rows_of(tmp_path / "lake" / "orders.dead_letters")] == BODIES[:1]
    assert registry.asked.count("/schemas/ids/1") == 1


def test_a_schema_that_the_registry_does_not_have_makes_a_dead_letter(registry: SmallRegistry, tmp_path: Path):
    """The registry has answered, so that is known."""
    bad = [framed(77, FIRST, {"id": 1}), b"\1\0\0\0\1\2", b"\0\0", BODIES[1][:-1]]
    log = written(tmp_path, [BODIES[1], *bad])
    with without_spark():
        export(log.store, tmp_path / "lake", tables=tables_of(registry))
    dead = sorted(rows_of(tmp_path / "lake" / "orders.dead_letters"), key=lambda row: row["commitLogOffset"])
    assert [row["body"] for row in dead] == bad
    assert dead[0]["reason"] == "the registry has no schema with this id: id=77"


def test_an_avro_schema_may_take_types_from_others(registry: SmallRegistry, tmp_path: Path):
    """Also from one that takes types from a third, in another namespace, and more than once."""
    city = {"type": "record", "name": "City", "namespace": "geo", "fields": [{"name": "name", "type": "string"}]}
    place = {"type": "record", "name": "shop.Place", "fields": [{"name": "city", "type": "geo.City"}]}
    order = {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "places", "type": {"type": "array", "items": "Place"}},
            {"name": "home", "type": ["null", "geo.City"]},
        ],
    }
    registry.imported = {"shop.Place": json.dumps(place), "geo.City": json.dumps(city)}
    registry.schemas = [("AVRO", json.dumps(order))]
    named: dict[str, Any] = {}
    for schema in (city, place):
        fastavro.parse_schema(schema, named)
    output = io.BytesIO()
    row = {"id": 7, "places": [{"city": {"name": "Oslo"}}], "home": {"name": "Rome"}}
    fastavro.schemaless_writer(output, fastavro.parse_schema(order, named), row)
    log = written(tmp_path, [b"\0\0\0\0\1" + output.getvalue()])
    with without_spark():
        export(log.store, tmp_path / "lake", tables=tables_of(registry))
    assert [{key: found[key] for key in row} for found in rows_of(tmp_path / "lake" / "orders")] == [row]


UNUSABLE = [
    ("AVRO", '"string"'),
    ("AVRO", json.dumps({**FIRST, "fields": [{"name": "id", "type": ["int", "string", "bytes"]}]})),
    ("AVRO", json.dumps({**FIRST, "fields": [{"name": "id", "type": {"type": "bytes", "logicalType": "decimal"}}]})),
    ("AVRO", "no"),
    ("PROTOBUF", "no"),
    ("PROTOBUF", 'edition = "2023"; message Order { int64 id = 1; }'),
]


@pytest.mark.parametrize("number", range(len(UNUSABLE)))
def test_a_schema_that_cannot_be_used_makes_a_dead_letter(registry: SmallRegistry, tmp_path: Path, number: int):
    """Any producer may have registered it, and a message that names it ends no export."""
    kind, _ = unusable = UNUSABLE[number]
    registry.schemas = [unusable, ("AVRO", json.dumps(FIRST)) if kind == "AVRO" else ("PROTOBUF", PROTO)]
    good = framed(2, FIRST, {"id": 7}) if kind == "AVRO" else b"\0\0\0\0\2\x02\x02\x08\x07"
    bad = [b"\0\0\0\0\1\0\0", b"\0\0\0\0\1\x02x\0"]
    log = written(tmp_path, [bad[0], good, bad[1]])
    keys = {} if kind == "AVRO" else {"format": "protobuf", "message": "Order"}
    with without_spark():
        export(log.store, tmp_path / "lake", tables=tables_of(registry, **keys))
    assert [row["id"] for row in rows_of(tmp_path / "lake" / "orders")] == [7]
    dead = rows_of(tmp_path / "lake" / "orders.dead_letters")
    assert [row["body"] for row in sorted(dead, key=lambda row: row["commitLogOffset"])] == bad
    assert all("id=1" in row["reason"] for row in dead)


OTHERS: list[tuple[Any, Any]] = [
    ("string", "5"),
    ("boolean", True),
    ({"type": "long", "logicalType": "timestamp-millis"}, 5),
    ({"type": "map", "values": "long"}, {"id": 5}),
    ({"type": "array", "items": "long"}, [5]),
    ({"type": "record", "name": "Inner", "fields": [{"name": "id", "type": "long"}]}, {"id": 5}),
    ("bytes", b"5"),
    ("double", 5.5),
]


@pytest.mark.parametrize(("kind", "value"), OTHERS)
def test_a_body_whose_schema_has_another_type_is_a_dead_letter(
    registry: SmallRegistry, tmp_path: Path, kind: Any, value: Any
):
    """A text is not read as a number, nor a time: its unit would be lost."""
    other = {"type": "record", "name": "Other", "fields": [{"name": "id", "type": kind}]}
    registry.schemas = [("AVRO", json.dumps(other)), ("AVRO", json.dumps(FIRST))]
    log = written(tmp_path, [framed(2, FIRST, {"id": 7}), framed(1, other, {"id": value})])
    with without_spark():
        report = export(log.store, tmp_path / "lake", tables=tables_of(registry))
    assert [(table.records, table.dead_letters) for table in report.tables] == [(1, 1)]


@pytest.mark.parametrize("failure", ["refuses", "broken", "absent"])
def test_while_the_registry_gives_no_answer_nothing_is_decided(
    registry: SmallRegistry, tmp_path: Path, failure: str, monkeypatch: pytest.MonkeyPatch
):
    """The export stops with the reason, and continues once the registry is there."""
    log = written(tmp_path, BODIES[1:])
    lake, tables = tmp_path / "lake", tables_of(registry)
    answer, later = registry.answer, {"refuses": 401, "broken": 500, "absent": 404}[failure]

    def after_the_first(path: str, authorization: str | None) -> tuple[int, dict[str, Any]]:
        return answer(path, authorization) if "latest" in path else (later, {"error_code": later, "message": "no"})

    with without_spark():
        monkeypatch.setattr(registry, "answer", after_the_first)
        with pytest.raises(DispatcherError, match="the schema registry does not answer: table=orders"):
            export(log.store, lake, tables=tables)
        assert rows_of(lake / "orders") == rows_of(lake / "orders.dead_letters") == []
        monkeypatch.undo()
        export(log.store, lake, tables=tables)
    assert len(rows_of(lake / "orders")) == 2
    assert rows_of(lake / "orders.dead_letters") == []


def test_a_registry_that_is_down_is_named(tmp_path: Path):
    """Without the password in its address."""
    registry = SmallRegistry()
    registry.close()
    log = written(tmp_path, BODIES)
    tables = tables_of(registry)
    tables["tables"]["orders"]["schema"] = registry.address.replace("//", "//user:secret@")
    with without_spark(), pytest.raises(DispatcherError) as refused:
        export(log.store, tmp_path / "lake", tables=tables)
    assert f"registry={registry.address} " in str(refused.value)
    assert "secret" not in str(refused.value)


def test_the_password_can_stay_in_the_environment(
    registry: SmallRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As in ``basic.auth.user.info = "$REGISTRY_USER"``."""
    registry.password = "reput:secret"
    log = written(tmp_path, BODIES[1:])
    tables = tables_of(registry, client={"basic.auth.user.info": "$REGISTRY_USER"})
    monkeypatch.setenv("REGISTRY_USER", "reput:wrong")
    with without_spark(), pytest.raises(DispatcherError, match="401"):
        export(log.store, tmp_path / "lake", tables=tables)
    monkeypatch.setenv("REGISTRY_USER", "reput:secret")
    with without_spark():
        assert export(log.store, tmp_path / "lake", tables=tables).records == 2


def test_a_subject_that_is_absent_or_of_another_kind_is_refused(registry: SmallRegistry, tmp_path: Path):
    """Before anything is written."""
    log = written(tmp_path, BODIES)
    with without_spark():
        with pytest.raises(ConfigError, match=r"the registry has no such subject: .* subject=nothing"):
            export(log.store, tmp_path / "lake", tables=tables_of(registry, subject="nothing"))
        with pytest.raises(ConfigError, match="kind=AVRO needed=PROTOBUF"):
            export(log.store, tmp_path / "lake", tables=tables_of(registry, format="protobuf"))
    assert not (tmp_path / "lake").exists()


def test_protobuf_names_its_message_by_indexes(registry: SmallRegistry, tmp_path: Path):
    """A body of another message of the same schema has none of the table's fields, so it is decoded by name."""
    pytest.importorskip("ptars")
    registry.schemas = [("PROTOBUF", PROTO)]
    order, other = b"\x08\x07", b"\x0a\x01x"
    bodies = [b"\0\0\0\0\1\x02\x02" + order, b"\0\0\0\0\1\0" + other, b"\0\0\0\0\1\x02\x0a" + order, b"\0\0\0\0\1\xff"]
    log = written(tmp_path, bodies)
    with without_spark():
        export(log.store, tmp_path / "lake", tables=tables_of(registry, format="protobuf", message="Order"))
    rows = sorted(rows_of(tmp_path / "lake" / "orders"), key=lambda row: row["_log"]["commitLogOffset"])
    assert [row["id"] for row in rows] == [7, None]
    dead = sorted(rows_of(tmp_path / "lake" / "orders.dead_letters"), key=lambda row: row["commitLogOffset"])
    assert [row["body"] for row in dead] == bodies[2:]
