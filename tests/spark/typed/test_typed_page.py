"""The page on typed tables: its tables can be made, and its queries return the rows."""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

from reput_plugins.spark_export import export
from source_tree import ROOT
from spark.exporting import without_spark
from spark.typed_formats import AVRO_SCHEMA, PROTO_SCHEMA, avro_payment
from written_log import WrittenLog

PAGE = (ROOT / "docs" / "typed-tables.md").read_text("utf-8")
FILES = re.findall(r"^```ini\n(.*?)^```", PAGE, re.M | re.S)
QUERIES = re.findall(r"^```py\n(.*?)^```", PAGE, re.M | re.S)
FIELDS = {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}
BODIES = {
    "json": b'{"id":7,"name":"x"}',
    "csv": b"7;x",
    "text": b"7 x",
    "msgpack": msgspec.msgpack.encode({"id": 7, "name": "x"}),
    "protobuf": b"\x08\x07\x12\x01x",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with the schema files that the page names."""
    for name in ("orders.schema.json", "readings.json", "customers.json"):
        (tmp_path / name).write_text(json.dumps(FIELDS))
    (tmp_path / "payments.avsc").write_text(json.dumps(AVRO_SCHEMA))
    (tmp_path / "events.proto").write_text(PROTO_SCHEMA)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def exported(folder: Path, text: str) -> Any:
    """Export one body for the table that *text* describes, and return its report."""
    ((_, table),) = tomllib.loads(text)["tables"].items()
    log = WrittenLog(folder / "store")
    log.append(
        avro_payment(7, "x") if table["format"] == "avro" else BODIES[table["format"]], topic=table["topic"].encode()
    )
    log.save()
    (folder / "tables.toml").write_text(text)
    with without_spark():
        (report,) = export(log.store, "lake", tables="tables.toml").tables
    return report


@pytest.mark.parametrize("text", [text for text in FILES if "registry" not in text])
def test_each_table_of_the_page_can_be_made(folder: Path, text: str):
    """With a body of its format."""
    if "avro" in text or "protobuf" in text:
        pytest.importorskip("pyruhvro")
        pytest.importorskip("ptars")
    report = exported(folder, text)
    assert (report.records, report.dead_letters) == (1, 0)


@pytest.mark.parametrize("query", [query for query in QUERIES if "spark" not in query])
def test_each_query_of_the_page_returns_the_rows(folder: Path, query: str):
    """DuckDB, Polars and pandas."""
    for module in re.findall(r"^import (\w+)", query, re.M):
        pytest.importorskip(module)
    exported(folder, FILES[0])
    names: dict[str, Any] = {}
    exec(query, names)
    assert names["rows"] == [(7, 0)]


@pytest.mark.spark
def test_spark_returns_the_rows(spark: Any, folder: Path):
    """Without the Delta jar, of a table that Spark's workers wrote."""
    (query,) = (query for query in QUERIES if "spark" in query)
    log = WrittenLog(folder / "store")
    for number in range(40):
        log.append(b"poison" if number % 10 == 0 else b'{"id":%d}' % number)
    log.save()
    (folder / "tables.toml").write_text(FILES[0])
    (report,) = export(log.store, "lake", tables="tables.toml").tables
    assert (report.records, report.dead_letters) == (36, 4)
    names: dict[str, Any] = {"spark": spark}
    exec(query.replace('"lake/orders"', repr(os.path.abspath("lake/orders"))), names)
    assert names["rows"] == [(number, number) for number in range(40) if number % 10]
