"""A lake in an object store: the same transactions, files and errors as in a folder, with a local S3 server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")
pytest.importorskip("moto")

import pyarrow.parquet as pq
from deltalake import DeltaTable

import reput.table
from local_s3 import local_s3
from reput.errors import ConfigError, DispatcherError
from reput.store.state.epochs import read_epochs
from reput.table import LogTable, TableOptions
from reput_hooks import Cursor
from reput_plugins.spark_export import check_lake, export, vacuum_lake
from reput_plugins.spark_export.lake import Lake
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lake_sink import SinkPlan, commit_ranges, remove_files, write_ranges
from reput_plugins.spark_export.lakes.opening import open_table
from reput_plugins.spark_export.lakes.storage_option_names import NAMES
from reput_plugins.spark_export.maintenance import Maintenance
from reput_plugins.spark_export.parquet_files import lake_schema
from reput_plugins.spark_export.proof.watermarks import FOLDER
from reput_plugins.spark_export.typed.keyed_rows import DELETED
from reput_plugins.spark_export.typed.typed_folder import inside
from spark.exporting import without_spark
from written_log import START_MS, WrittenLog

pytestmark = pytest.mark.processes

DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def storage_options() -> Iterator[dict[str, str]]:
    """Return the settings for an S3 with a bucket named ``lakes``."""
    with local_s3("lakes") as found:
        yield found


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    """Return a log of 40 records in two topics, whose names are escaped in folders, over two days."""
    log = WrittenLog(tmp_path / "store")
    for number in range(40):
        topic = ("%RETRY%a|b", "订单")[number % 2].encode()
        log.append(b"%d" % number * 10, topic=topic, store_timestamp=START_MS + DAY_MS * number // 20)
    log.save()
    return log


def offsets_of(location: LakeLocation) -> list[int]:
    """Return the commit-log offsets in a lake, ascending."""
    found: list[int] = open_table(location).dataset().to_table()["commitLogOffset"].to_pylist()
    return sorted(found)


def names_in(location: LakeLocation) -> set[str]:
    """Return the existing Parquet files of the rows, in a transaction or not."""
    import pyarrow.fs

    found = location.filesystem().get_file_info(pyarrow.fs.FileSelector("", recursive=True))
    return {entry.path for entry in found if entry.path.endswith(".parquet") and not entry.path.startswith(FOLDER)}


def test_batches_are_kept_once_merged_and_cut(storage_options: dict[str, str], log: WrittenLog):
    """A repeated batch, files of a failed batch, small files, a cut: as in a folder."""
    location = LakeLocation.of("s3://lakes/a lake/", storage_options)
    epochs = read_epochs(log.store, LogTable(log.store).store_id)
    options = TableOptions()
    lake = Lake(location, "export", epochs)
    lake.create(lake_schema(options.row_format), None)
    plan = SinkPlan(str(log.store), location, "export", options)
    ends = [*log.offsets, log.end]

    def write(begin: int, until: int) -> Any:
        import pyarrow as pa

        return write_ranges(plan, iter([pa.record_batch({"begin": [ends[begin]], "until": [ends[until]]})]))

    for begin in range(0, 40, 10):
        commit_ranges(plan, [write(begin, begin + 4), write(begin + 4, begin + 10)])
    commit_ranges(plan, [write(30, 40)])
    assert offsets_of(location) == log.offsets
    assert names_in(location) == {file.path for file in open_table(location).files()}
    remove_files(plan, [write(0, 40)])
    assert names_in(location) == {file.path for file in open_table(location).files()}
    found = open_table(location).dataset().to_table().sort_by("commitLogOffset")
    expected = reput.table.read(log.store)
    assert found.select(expected.column_names).cast(expected.schema).equals(expected)
    assert Maintenance(location, interval_ms=1, vacuum_hours=1).run(lambda: None) > 0
    assert offsets_of(location) == log.offsets
    replaced = names_in(location) - {file.path for file in open_table(location).files()}
    assert {*open_table(location).unnamed_files(0)} == replaced
    versions = list(open_table(location).versions(replaced))
    # The empty table, and the newest one; each of the two days was merged in a transaction of its own.
    assert [version.stays for version in versions] == [True, *[False] * 5, True]
    (planned,) = vacuum_lake("s3://lakes/", table="a lake", storage_options=storage_options, dry_run=True)
    assert (planned.table, planned.files, planned.readable_from_version) == ("a lake", 0, 0)
    cut = Lake(location, "export", epochs.begin(ends[25], 0))
    cut.truncate(Cursor(epochs.store_id, cut.epochs.epoch, ends[25], 0), [])
    assert offsets_of(location) == log.offsets[:25]


@pytest.mark.long
@pytest.mark.parametrize("lake_format", ["delta", "iceberg"])
def test_a_typed_table_with_a_key_is_merged_in_an_object_store(
    storage_options: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest, lake_format: str
):
    """The files by which workers hand over changes are read there, and gone afterwards."""
    log = WrittenLog(tmp_path / "store", segment_size=1 << 16)
    keyed = {"topic": "orders", "format": "json", "schema": "infer", "mode": "upsert", "key": ["id"]}
    catalog = request.getfixturevalue("catalog") if lake_format == "iceberg" else None
    address = f"s3://lakes/keyed-{lake_format}"
    folder = LakeLocation.of(address, storage_options, lake_format=lake_format, catalog=catalog)
    given: Any = {"storage_options": storage_options, "lake_format": lake_format, "catalog": catalog}
    with without_spark():
        for number in range(3):
            for key in range(5):
                body = b"" if key == number else b'{"id": %d, "number": %d}' % (key, number)
                log.append(body, properties=b"KEYS\x01%d\x02" % key)
            log.save()
            export(log.store, address, tables={"tables": {"keyed": keyed}}, **given)
    location = inside(folder, "keyed")
    rows = open_table(location).dataset().to_table()
    found = zip(rows["id"].to_pylist(), rows["number"].to_pylist(), strict=True)
    assert sorted(found) == [(0, 2), (1, 2), (3, 2), (4, 2)]
    schemas = [pq.read_schema(name, filesystem=location.filesystem()) for name in names_in(location)]
    assert [schema for schema in schemas if DELETED in schema.names] == []


def test_typed_tables_lie_in_an_object_store(storage_options: dict[str, str], log: WrittenLog):
    """With their dead letters; the folder is no table of the log there either, and each run goes on."""
    path = log.store.parent / "objects.json"
    path.write_text('{"type": "object", "properties": {"id": {"type": "integer"}}}')
    objects = {"topic": "%RETRY%a|b", "format": "json", "schema": str(path)}
    tables = {"tables": {"bodies": {"topic": "订单", "format": "text"}, "numbers": objects}}
    given: dict[str, Any] = {"storage_options": storage_options}
    with without_spark():
        first = export(log.store, "s3://lakes/typed", tables=tables, until=log.offsets[20], **given)
        second = export(log.store, "s3://lakes/typed", tables=tables, **given)
        with pytest.raises(ConfigError, match=r"the folder holds typed tables: .* tables=bodies,numbers"):
            export(log.store, "s3://lakes/typed", **given)
        report: Any = check_lake(log.store, "s3://lakes/typed", **given)
    assert report.ok
    assert {name: (found.rows, found.dead_letters) for name, found in report.tables.items()} == {
        "bodies": (20, 0),
        "numbers": (0, 20),
    }
    counts = [[(table.records, table.dead_letters) for table in report.tables] for report in (first, second)]
    assert counts == [[(10, 0), (0, 10)], [(10, 0), (0, 10)]]
    texts = open_table(LakeLocation.of("s3://lakes/typed/bodies", storage_options)).dataset().to_table()["text"]
    assert sorted(texts.to_pylist()) == sorted(str(number) * 10 for number in range(1, 40, 2))
    dead = open_table(LakeLocation.of("s3://lakes/typed/numbers.dead_letters", storage_options)).dataset()
    assert dead.count_rows() == 20


@pytest.mark.long
def test_an_iceberg_table_lies_in_an_object_store(storage_options: dict[str, str], log: WrittenLog, catalog: str):
    """With a catalog of pyiceberg's configuration; repeated batches, merging, a cut and leftovers as in a folder."""
    import pyarrow as pa

    table: Any = {"lake_format": "iceberg", "catalog": catalog, "catalog_table": "sales.messages"}
    location = LakeLocation.of("s3://lakes/iceberg", storage_options, **table)
    epochs = read_epochs(log.store, LogTable(log.store).store_id)
    lake = Lake(location, "export", epochs)
    lake.create(lake_schema(TableOptions().row_format), None)
    plan = SinkPlan(str(log.store), location, "export", TableOptions()).of_table()
    ends = [*log.offsets, log.end]

    def write(begin: int, until: int) -> Any:
        return write_ranges(plan, iter([pa.record_batch({"begin": [ends[begin]], "until": [ends[until]]})]))

    for begin in (0, 10, 20, 30, 30):
        commit_ranges(plan, [write(begin, begin + 10)])
    assert offsets_of(location) == log.offsets
    assert names_in(location) == {file.path for file in open_table(location).files()}
    assert Maintenance(location, interval_ms=1, vacuum_hours=1).run(lambda: None) > 0
    assert offsets_of(location) == log.offsets
    cut = Lake(location, "export", epochs.begin(ends[25], 0))
    cut.truncate(Cursor(epochs.store_id, cut.epochs.epoch, ends[25], 0), [])
    assert offsets_of(location) == log.offsets[:25]
    opened: Any = open_table(location)
    assert sorted(opened.table.scan().to_arrow()["commitLogOffset"].to_pylist()) == log.offsets[:25]


@pytest.mark.spark
def test_an_export_goes_to_an_object_store(
    spark: Any, storage_options: dict[str, str], log: WrittenLog, tmp_path: Path
):
    """Workers write there with the driver's settings; a second run adds nothing."""
    first = export(log.store, "s3://lakes/exported", storage_options=storage_options, until=log.offsets[10])
    second = export(log.store, "s3://lakes/exported", storage_options=storage_options)
    third = export(log.store, "s3://lakes/exported", storage_options=storage_options)
    assert (first.records, second.records, third.records) == (10, 30, 0)
    assert offsets_of(LakeLocation.of("s3://lakes/exported", storage_options)) == log.offsets
    assert DeltaTable("s3://lakes/exported", storage_options=storage_options).version() == third.table_version
    assert not list(tmp_path.glob("**/*.parquet"))
    assert "s3:" not in os.listdir()


def test_what_an_object_store_refuses_is_one_sentence(storage_options: dict[str, str], log: WrittenLog):
    """Before Spark is started; no error contains keys."""
    with pytest.raises(
        DispatcherError, match=r"the lake cannot be read: lake=s3://absent/lake error=.*NoSuchBucket"
    ) as it:
        export(log.store, "s3://absent/lake", storage_options=storage_options)
    assert "\n" not in str(it.value)
    assert "not shown" not in str(it.value)
    with pytest.raises(ConfigError, match="names no bucket"):
        export(log.store, "s3:///lake", storage_options=storage_options)


def test_a_misspelt_setting_is_named(caplog: pytest.LogCaptureFixture):
    """The Delta library ignores it. Other unknown names may be newer than reput."""
    options = dict.fromkeys(["AWS_REGOIN", "aws_secret_acess_key", "AWS_REGION", "allow_http", "later"], "a secret")
    LakeLocation.of("s3://lakes/lake", options)
    found = [record.getMessage().partition(": ")[2] for record in caplog.records]
    assert found == [
        "storage_option=AWS_REGOIN meant=AWS_REGION",
        "storage_option=aws_secret_acess_key meant=aws_secret_access_key",
    ]


def test_settings_of_the_library_are_not_named(caplog: pytest.LogCaptureFixture):
    """With and without the store in front, in either case."""
    for name in NAMES:
        LakeLocation.of("s3://lakes/lake", {name: "x", f"AWS_{name.upper()}": "x", f"azure_storage_{name}": "x"})
    assert not caplog.records
