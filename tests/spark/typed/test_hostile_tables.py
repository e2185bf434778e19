"""Tables whose bodies have values, names or shapes that no file, folder or merge could take without care."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

from deltalake import DeltaTable

from reput.errors import ConfigError
from reput_plugins.spark_export import check_lake, export, optimize_lake, parquet_files
from spark.exporting import without_spark
from spark.lakes import rows_in
from written_log import WrittenLog

FIELDS = {"id": "integer", "name": "string"}


@pytest.fixture(autouse=True)
def exported_here() -> Iterator[None]:
    """Make exports do their work in this process."""
    with without_spark():
        yield


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    """Return an empty log."""
    return WrittenLog(tmp_path / "store", segment_size=1 << 18)


def put(log: WrittenLog, *bodies: dict[str, Any], **fields: Any) -> None:
    """Append JSON bodies."""
    for body in bodies:
        log.append(json.dumps(body).encode(), **fields)
    log.save()


def tables(tmp_path: Path, **keys: Any) -> dict[str, Any]:
    """Return the typed table `orders` with the columns of `FIELDS`."""
    schema = tmp_path / "orders.json"
    schema.write_text(json.dumps({"type": "object", "properties": {name: {"type": FIELDS[name]} for name in FIELDS}}))
    return {"tables": {"orders": {"topic": "orders", "format": "json", "schema": str(schema), **keys}}}


def names_by_id(lake: Path) -> dict[int, str | None]:
    """Return the names in the table, by id."""
    return {row["id"]: row["name"] for row in rows_in(lake / "orders").to_pylist()}


TEXTS = ["a\0b", "\0", "..", "/x", "%00", "é=\n", "a|b", "{`<>}", "-._!$&()+,;@ ", "x" * 200, "/" * 80, None]


@pytest.mark.parametrize(
    ("lake_format", "mode"),
    [
        ("delta", "append"),
        ("iceberg", "upsert"),
        pytest.param("delta", "upsert", marks=pytest.mark.long),
        pytest.param("iceberg", "append", marks=pytest.mark.long),
    ],
)
def test_any_text_of_a_fitting_length_may_name_a_partition(
    log: WrittenLog, tmp_path: Path, lake_format: str, mode: str
):
    """Others are dead letters, as are the text that stands for null and a tilde. The files can be merged."""
    pytest.importorskip("pyiceberg" if lake_format == "iceberg" else "deltalake")
    keyed = {"mode": "upsert", "key": ["id"]} if mode == "upsert" else {}
    lake, asked = tmp_path / "lake", tables(tmp_path, partition_by=["name"], **keyed)
    for _ in range(3):
        put(log, *({"id": number, "name": text} for number, text in enumerate(TEXTS)))
        put(log, *({"id": 99, "name": text} for text in ("x" * 300, "/" * 90, "__HIVE_DEFAULT_PARTITION__", "~")))
        report = export(log.store, lake, tables=asked, lake_format=lake_format)
        assert report.tables[0].dead_letters == 4
        optimize_lake(lake, lake_format=lake_format)
    assert names_by_id(lake) == dict(enumerate(TEXTS))
    assert len(rows_in(lake / "orders")) == len(TEXTS) * (1 if keyed else 3)
    assert check_lake(log.store, lake).ok


def test_a_worker_keeps_few_files_open(log: WrittenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """However many values the partition column has."""
    monkeypatch.setattr(parquet_files, "OPEN_FILES_MAX", 8)
    put(log, *({"id": number, "name": f"n{number % 400}"} for number in range(600)))
    opened = len(list(Path("/proc/self/fd").iterdir()))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 200, limits[1]))
    try:
        export(log.store, tmp_path / "lake", tables=tables(tmp_path, partition_by=["name"]))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert names_by_id(tmp_path / "lake") == {number: f"n{number % 400}" for number in range(600)}


def test_fields_that_cannot_be_added_end_no_export(log: WrittenLog, tmp_path: Path):
    """Names that differ only in case, or are those of the log's columns; once the table exists, they are left out."""
    inferred = tables(tmp_path, schema="infer")
    put(log, {"id": 1, "ID": 2, "inner": {"a": 1}})
    export(log.store, tmp_path / "lake", tables=inferred)
    put(log, {"id": 3, "_log": 1, "_date": "x", "new": 1, "NEW": 2, "inner": {"a": 2, "b": 3, "A": 4}})
    report = export(log.store, tmp_path / "lake", tables=inferred)
    assert report.records == 1
    rows = sorted(rows_in(tmp_path / "lake" / "orders").to_pylist(), key=lambda row: row["id"])
    assert [(row["id"], row["new"], row["inner"]) for row in rows] == [
        (1, None, {"a": 1, "b": None}),
        (3, 1, {"a": 2, "b": 3}),
    ]


def test_only_messages_of_the_table_show_its_fields(log: WrittenLog, tmp_path: Path):
    """Those with another tag have columns of their own."""
    put(log, {"other": 1}, properties=b"TAGS\x01open\x02")
    put(log, {"id": 1}, properties=b"TAGS\x01paid\x02")
    export(log.store, tmp_path / "lake", tables=tables(tmp_path, schema="infer", tags="paid"))
    assert rows_in(tmp_path / "lake" / "orders").drop_columns(["_log", "_date"]).to_pylist() == [{"id": 1}]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"format": "csv", "schema": "infer"}, "Fields cannot be inferred from the format csv"),
        ({"format": "csv", "delimiter": "é"}, "delimiter='é'"),
        ({"format": "csv", "delimiter": "\n"}, r"delimiter='\n'"),
        ({"format": "csv", "delimiter": '"'}, "delimiter='\"'"),
        ({"mode": "upsert", "key": ["a.b"]}, "key=a.b"),
        ({"mode": "upsert", "key": ["id", "id"]}, "key=id,id"),
        ({"partition_by": ["name", "name"]}, "partition_by=name,name"),
        ({"cluster_by": ["_date"]}, "cluster_by=_date"),
        ({"cluster_by": ["a,b"]}, "cluster_by=a,b"),
    ],
)
def test_a_table_that_could_never_have_a_row_is_refused(
    log: WrittenLog, tmp_path: Path, keys: dict[str, Any], text: str
):
    """Before anything is written."""
    put(log, {"id": 1})
    with pytest.raises(ConfigError) as refused:
        export(log.store, tmp_path / "lake", tables=tables(tmp_path, **keys))
    assert text in f"{refused.value} {refused.value.advice}"
    assert str(refused.value).count("a typed table cannot be made like this") == 1


def test_a_sender_s_wrong_clock_does_not_make_a_table_unreadable(log: WrittenLog, tmp_path: Path):
    """Microseconds instead of milliseconds lie thousands of years ahead, which pandas cannot show."""
    put(log, {"id": 1}, born_timestamp=1_700_000_000_000_000)
    put(log, {"id": 2})
    export(log.store, tmp_path / "lake", tables=tables(tmp_path))
    found = DeltaTable(tmp_path / "lake" / "orders").to_pandas()
    assert [row["bornTimestamp"] is None for row in found["_log"]] == [True, False]
    assert check_lake(log.store, tmp_path / "lake").ok


@pytest.mark.parametrize("key", ["partition_by", "cluster_by"])
def test_the_columns_of_the_log_do_not_order_files(log: WrittenLog, tmp_path: Path, key: str):
    """The struct of them has no order."""
    put(log, {"id": 1})
    with pytest.raises(ConfigError, match=f"a column of this type cannot be used for {key}: table=orders {key}=_log"):
        export(log.store, tmp_path / "lake", tables=tables(tmp_path, **{key: ["_log"]}))


MALFORMED: list[Any] = [
    {"type": "object", "properties": 3},
    {"type": "object", "properties": {"a": {"$ref": 5}}},
    {"type": "object", "properties": {"a": {"type": "string", "format": ["x"]}}},
    {"type": "object", "properties": {"a": {"oneOf": 5}}},
    {"$ref": "#/definitions/a", "definitions": {"a": {"type": "string"}}},
]


@pytest.mark.parametrize("schema", MALFORMED)
def test_a_malformed_json_schema_is_refused(log: WrittenLog, tmp_path: Path, schema: Any):
    """With a sentence that names the table."""
    put(log, {"id": 1})
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(schema))
    with pytest.raises(ConfigError, match="table=orders"):
        export(log.store, tmp_path / "lake", tables=tables(tmp_path, schema=str(file)))


def test_a_json_schema_may_begin_with_a_reference(log: WrittenLog, tmp_path: Path):
    """Generators of schemas write them so."""
    put(log, {"id": 1})
    file = tmp_path / "order.json"
    order = {"type": "object", "properties": {"id": {"type": "integer"}}}
    file.write_text(json.dumps({"$ref": "#/definitions/Order", "definitions": {"Order": order}}))
    assert export(log.store, tmp_path / "lake", tables=tables(tmp_path, schema=str(file))).records == 1


@pytest.mark.parametrize("lake_format", ["delta", "iceberg"])
def test_an_empty_key_that_names_a_partition_is_a_dead_letter(log: WrittenLog, tmp_path: Path, lake_format: str):
    """A partition's name cannot tell an empty text from null, so a later message would not find the row."""
    pytest.importorskip("pyiceberg" if lake_format == "iceberg" else "deltalake")
    keyed = tables(tmp_path, mode="upsert", key=["name"], partition_by=["name"])
    for number in range(3):
        put(log, {"id": number, "name": ""}, {"id": number, "name": "a"})
        export(log.store, tmp_path / "lake", tables=keyed, lake_format=lake_format)
    assert names_by_id(tmp_path / "lake") == {2: "a"}
    assert len(rows_in(tmp_path / "lake" / "orders.dead_letters")) == 3
    assert check_lake(log.store, tmp_path / "lake").ok
