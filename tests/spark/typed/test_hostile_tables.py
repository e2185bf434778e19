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


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("lake_format", ["delta", "iceberg"])
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
