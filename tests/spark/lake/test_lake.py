"""The lake without Spark: files, transactions, maintenance. A kill between two steps changes no row."""

from __future__ import annotations

import functools
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("deltalake")

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

import reput.table
from reput.errors import ConfigError, DispatcherError, StoreError
from reput.store.state.epochs import Epochs, read_epochs
from reput.table import LogTable, RowFormat, TableOptions
from reput_hooks import Cursor
from reput_plugins.spark_export import parquet_files
from reput_plugins.spark_export.lake import Commit, Lake
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lake_sources import lake_sources, row_name
from reput_plugins.spark_export.lakes.delta_table import DeltaLakeTable
from reput_plugins.spark_export.lakes.lake_table import CommitConflict, ParquetFile
from reput_plugins.spark_export.lakes.opening import open_table
from reput_plugins.spark_export.maintenance import (
    ALIKE_FILES_MAX,
    COMMITS_BETWEEN_LOOKS,
    Maintenance,
    days_to_merge,
    merged_size,
)
from reput_plugins.spark_export.parquet_files import PartitionFile, folder_name, lake_schema, write_range
from reput_plugins.spark_export.proof.watermarks import read_watermarks
from spark.lakes import lake_rows, offsets_in
from written_log import START_MS, WrittenLog

OPTIONS = TableOptions()
SCHEMA = lake_schema(OPTIONS.row_format)
# Columns of a lake that are not fields of a record.
NO_FIELDS = ["date", "store"]
DAY_MS = 86_400_000
MIB = 1 << 20
SETTINGS: dict[str, str | None] = {"reput.format": "1"}
UNKNOWN_KEYS: Any = {"raise_if_key_not_exists": False}


class Export:
    """A log of 60 records over three days, and a lake that takes in parts of it."""

    def __init__(self, root: Path, schema: pa.Schema = SCHEMA, *, begun: bool = True, segment_size: int = 4096) -> None:
        self.log = WrittenLog(root / "store", segment_size=segment_size)
        for number in range(60):
            topic = ("orders", "%RETRY%a|b", "订单")[number % 3].encode()
            self.log.append(b"%d" % number * 10, topic=topic, store_timestamp=START_MS + DAY_MS * number // 20)
        self.log.save()
        self.path = root / "lake"
        self.location = LakeLocation.of(self.path)
        self.store_id = LogTable(self.log.store).store_id
        self.lake = Lake(self.location, "export", read_epochs(self.log.store, self.store_id))
        if begun:
            self.lake.create(schema, None)

    def write(self, begin: int, until: int, options: TableOptions = OPTIONS) -> list[ParquetFile]:
        """Write the files of records number *begin* up to *until*."""
        return write_range(
            self.location, str(self.log.store), self.store_id, options, self.offset(begin), self.offset(until)
        )[0]

    def commit(self, begin: int, until: int, **options: bool) -> Commit | None:
        """Write and commit these records."""
        files = self.write(begin, until)
        return self.lake.commit(SCHEMA, self.offset(begin), self.offset(until), files, **options)

    def offset(self, number: int) -> int:
        """Return the begin of a record, or the end of the log."""
        return [*self.log.offsets, self.log.end][number]

    def committed(self) -> int | None:
        """Return up to where the lake has the log."""
        return self.lake.committed(open_table(self.location))


@pytest.fixture
def export(tmp_path: Path) -> Export:
    """Return an export that has not begun."""
    return Export(tmp_path)


def test_rows_come_back_as_they_are_in_the_log(export: Export):
    """Every column of the log is in the lake, and the date is the UTC day of the store time."""
    export.commit(0, 60)
    expected = reput.table.read(export.log.store)
    found = lake_rows(export.path)
    assert found.select(expected.column_names).cast(expected.schema).equals(expected)
    days = [datetime.fromtimestamp((START_MS + DAY_MS * n // 20) / 1000, UTC).date() for n in range(60)]
    assert found["date"].to_pylist() == days


def test_a_batch_that_comes_again_is_not_added_twice(export: Export):
    """A committer that was killed after its commit repeats everything: the table already knows."""
    assert export.commit(0, 20) is not None
    assert export.commit(0, 20) is None
    assert export.commit(0, 10) is None
    assert offsets_in(export.path) == export.log.offsets[:20]


def test_files_without_a_commit_are_no_rows(export: Export):
    """A worker or committer killed before the commit leaves files that no reader uses."""
    export.commit(0, 20)
    export.write(20, 40)
    assert offsets_in(export.path) == export.log.offsets[:20]
    assert export.committed() == export.offset(20)
    export.commit(20, 60)
    assert offsets_in(export.path) == export.log.offsets


@pytest.mark.parametrize(("begin", "until"), [(10, 40), (30, 40)], ids=["overlap", "gap"])
def test_a_range_must_begin_where_the_table_ends(export: Export, begin: int, until: int):
    """Neither an overlap nor a gap is ever committed."""
    export.commit(0, 20)
    with pytest.raises(DispatcherError, match="another exporter writes this lake"):
        export.commit(begin, until)
    assert offsets_in(export.path) == export.log.offsets[:20]


def test_a_gap_can_be_allowed(export: Export):
    """Records that retention deleted can no longer be exported; the rest can."""
    export.commit(0, 20)
    export.commit(30, 60, gap_allowed=True)
    assert offsets_in(export.path) == [*export.log.offsets[:20], *export.log.offsets[30:]]


def test_two_commits_at_once_are_one(export: Export, monkeypatch: pytest.MonkeyPatch):
    """If another commit came after the table was loaded, the table itself refuses the second one."""
    export.commit(0, 20)
    files = export.write(20, 40)
    stale = open_table(export.location)
    export.commit(20, 50)
    monkeypatch.setattr("reput_plugins.spark_export.lake.open_table", lambda location: stale)
    with pytest.raises(DispatcherError):
        export.lake.commit(SCHEMA, export.offset(20), export.offset(40), files)
    assert offsets_in(export.path) == export.log.offsets[:50]


def test_a_commit_whose_answer_was_lost_is_the_export_s_own(export: Export, monkeypatch: pytest.MonkeyPatch):
    """The client of an object store sends it again then, and finds its own transaction in the way."""
    append = DeltaLakeTable.append

    def unanswered(table: DeltaLakeTable, *arguments: Any) -> None:
        append(table, *arguments)
        if table.location == export.location:
            raise CommitConflict("a transaction of this application is there")

    export.commit(0, 20)
    monkeypatch.setattr(DeltaLakeTable, "append", unanswered)
    added = export.commit(20, 40)
    assert added is not None
    assert added.records == 20
    assert offsets_in(export.path) == export.log.offsets[:40]
    assert [mark.until for mark in read_watermarks(export.location, export.store_id)] == [
        export.offset(20),
        export.offset(40),
    ]


def test_exporters_that_create_or_extend_a_table_at_once_all_get_it(tmp_path: Path):
    """Whoever comes second takes what is there, instead of failing with the library's conflict."""
    narrow = pa.schema([field for field in SCHEMA if field.name not in ("flag", "sysFlag")])
    wider = pa.schema([*narrow, SCHEMA.field("flag")])
    for number in range(6):
        lakes = [Lake(LakeLocation.of(tmp_path / f"{number}"), "export", Epochs(name, [])) for name in ("a", "b", "c")]
        for schemas in ([narrow] * 3, [wider, SCHEMA, SCHEMA]):
            together = threading.Barrier(3)

            def create(lake: Lake, schema: pa.Schema, together: threading.Barrier = together) -> set[str]:
                together.wait()
                return set(lake.create(schema, None).schema().names)

            with ThreadPoolExecutor(3) as threads:
                for names, schema in zip(threads.map(create, lakes, schemas), schemas, strict=True):
                    assert names >= set(schema.names)


def test_a_new_epoch_goes_on_where_the_old_one_ended(export: Export):
    """After another program wrote beyond the exported part, the same lake continues."""
    export.commit(0, 20)
    epochs = export.lake.epochs.begin(export.offset(20), 0)
    export.lake = Lake(export.location, "export", epochs)
    assert export.committed() == export.offset(20)
    export.commit(20, 60)
    assert offsets_in(export.path) == export.log.offsets


def test_a_log_that_was_cut_below_the_lake_is_refused(export: Export):
    """The error has the position of the cut and the range of the lake."""
    export.commit(0, 20)
    export.lake = Lake(export.location, "export", export.lake.epochs.begin(export.offset(10), 0))
    with pytest.raises(StoreError, match=f"cut_at={export.offset(10)} lake_until={export.offset(20)}"):
        export.committed()


def test_what_was_cut_can_be_taken_out(export: Export):
    """The rows from the cut on are removed, in one transaction that also moves the table's position back."""
    export.commit(0, 20)
    epochs: Epochs = export.lake.epochs.begin(export.offset(10), 0)
    export.lake = Lake(export.location, "export", epochs)
    export.lake.truncate(Cursor(epochs.store_id, epochs.epoch, export.offset(10), 0), [])
    assert offsets_in(export.path) == export.log.offsets[:10]
    assert export.committed() == export.offset(10)
    export.commit(10, 60)
    assert offsets_in(export.path) == export.log.offsets


def test_a_cut_that_no_row_lies_behind_is_kept_in_mind(export: Export):
    """The lake then ends at the cut in the new epoch, has dropped invalid marks, and the export continues there."""
    files = export.write(0, 10)
    export.lake.commit(SCHEMA, 0, export.offset(20), files)
    epochs: Epochs = export.lake.epochs.begin(export.offset(15), 0)
    void = Cursor(epochs.store_id, epochs.epoch + 1, export.offset(20), 0)
    export.lake.go_on(open_table(export.location), void, [], [])
    export.lake = Lake(export.location, "export", epochs, "earlier-name")
    export.lake.truncate(Cursor(epochs.store_id, epochs.epoch, export.offset(15), 0), [], [void])
    assert export.committed() == export.offset(15)
    assert row_name(open_table(export.location), epochs.store_id, "export") == "earlier-name"
    assert void.epoch not in [cursor.epoch for cursor in lake_sources(open_table(export.location), "export")]
    version = open_table(export.location).version()
    export.lake.truncate(Cursor(epochs.store_id, epochs.epoch, export.offset(15), 0), [], [void])
    assert open_table(export.location).version() == version
    export.commit(15, 60)
    assert offsets_in(export.path) == export.log.offsets[:10] + export.log.offsets[15:]


def test_rows_that_cannot_be_taken_out_are_one_sentence(export: Export, monkeypatch: pytest.MonkeyPatch):
    """With advice, as for a commit; the rows stay."""
    export.commit(0, 20)

    def refuse(*arguments: Any, **options: Any) -> None:
        raise DeltaError("no space left")

    monkeypatch.setattr("deltalake.DeltaTable.delete", refuse)
    with pytest.raises(DispatcherError, match=r"the lake refused a commit: lake=.* error=no space left") as raised:
        export.lake.truncate(Cursor(export.store_id, export.lake.epochs.epoch, export.offset(10), 0), [])
    assert "Free space" in raised.value.advice
    assert offsets_in(export.path) == export.log.offsets[:20]


def test_a_lake_of_an_older_reput_gets_the_columns_that_it_lacks(tmp_path: Path):
    """Its rows are null there, new rows are complete, and merging keeps both, and also columns added by users."""
    from deltalake.schema import Field, PrimitiveType

    older = SCHEMA.remove(SCHEMA.get_field_index("brokerName")).remove(SCHEMA.get_field_index("keys") - 1)
    export = Export(tmp_path, older)
    columns = tuple(name for name in older.names if name not in NO_FIELDS)
    options = TableOptions(row_format=RowFormat(columns=columns))
    files, _ = write_range(export.location, str(export.log.store), export.store_id, options, 0, export.offset(30))
    export.lake.commit(older, 0, export.offset(30), files)
    DeltaTable(export.path).alter.add_columns([Field("note", PrimitiveType("string"))])
    assert export.lake.create(SCHEMA, None).version() == 3
    export.commit(30, 60)
    expected = reput.table.read(export.log.store)
    for _ in range(2):
        found = lake_rows(export.path)
        assert {*found.column_names} == {*SCHEMA.names, "note"}
        assert found.select(older.names).drop(NO_FIELDS).equals(expected.select(options.row_format.columns))
        assert found["tags"].to_pylist() == [*[None] * 30, *expected["tags"].to_pylist()[30:]]
        Maintenance(export.location, interval_ms=1, vacuum_hours=0).run(lambda: None)
    assert export.lake.create(SCHEMA, None).version() == DeltaTable(export.path).version()


def test_a_lake_whose_columns_do_not_fit_is_refused(tmp_path: Path):
    """The error names the column, its type and the required type; nothing is changed."""
    place = SCHEMA.get_field_index("queueId")
    for number, (schema, sentence) in enumerate(
        (
            (SCHEMA.set(place, pa.field("queueId", pa.string())), "column=queueId type=string needed=int32"),
            (SCHEMA.append(pa.field("note", pa.string(), nullable=False)), "column=note type=string"),
        )
    ):
        export = Export(tmp_path / str(number), schema, begun=False)
        DeltaTable.create(export.path, schema, partition_by=["topic", "date"], configuration=SETTINGS, **UNKNOWN_KEYS)
        with pytest.raises(ConfigError, match=sentence):
            export.lake.create(SCHEMA, None)
    DeltaTable.create(tmp_path / "flat", SCHEMA, configuration=SETTINGS, **UNKNOWN_KEYS)
    flat = Lake(LakeLocation.of(tmp_path / "flat"), "export", export.lake.epochs)
    with pytest.raises(ConfigError, match=r"partitioned differently: .* columns= needed=topic,date"):
        flat.create(SCHEMA, None)


def test_where_no_lake_can_be_is_told(export: Export, tmp_path: Path):
    """A file in its place, an unreadable table, an address without a bucket, settings without effect."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DispatcherError, match=f"the lake is not a folder: lake={tmp_path}/file"):
        Lake(LakeLocation.of(tmp_path / "file"), "export", export.lake.epochs).create(SCHEMA, None)
    with pytest.raises(DispatcherError, match="the lake cannot be created: lake=/proc/lake error="):
        Lake(LakeLocation.of("/proc/lake"), "export", export.lake.epochs).create(SCHEMA, None)
    (export.path / "_delta_log" / f"{0:020d}.json").write_bytes(b"no transaction")
    with pytest.raises(DispatcherError, match="the lake cannot be read: lake=") as raised:
        export.lake.create(SCHEMA, None)
    assert "\n" not in str(raised.value)
    with pytest.raises(ConfigError, match="names no bucket: lake=s3:///a"):
        LakeLocation.of("s3:///a")
    with pytest.raises(ConfigError, match="storage_options=AWS_REGION"):
        LakeLocation.of(tmp_path, {"AWS_REGION": "here"})
    assert LakeLocation.of("file:///a%20b") == LakeLocation.of("/a b")


def test_statistics_let_readers_leave_files_out(export: Export):
    """Each file has its row count and its ranges of offsets and times."""
    (first, *_) = export.write(0, 3)
    assert first.row_count == 1
    assert first.minimum["commitLogOffset"] == export.log.offsets[0]
    assert first.minimum["storeTimestamp"] == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


def test_partition_columns_are_in_the_folder_and_not_in_the_file(export: Export):
    """Readers that see both would not know which one is right."""
    files = export.write(0, 60)
    for file in files:
        assert {"topic", "date"}.isdisjoint(pq.read_schema(export.path / file.path).names)
        topic, day = file.partition["topic"], file.partition["date"]
        assert file.path.startswith(f"{folder_name('topic', topic)}/date={day}/")


@pytest.mark.parametrize(
    ("value", "folder"),
    [
        ("orders", "topic=orders"),
        ("%RETRY%a|b", "topic=%25RETRY%25a|b"),
        ("a/b=c:d", "topic=a%2Fb%3Dc%3Ad"),
        ("订单", "topic=订单"),
        (None, "topic=__HIVE_DEFAULT_PARTITION__"),
        ("", "topic=__HIVE_DEFAULT_PARTITION__"),
    ],
)
def test_folders_are_named_as_hive_names_them(value: str | None, folder: str):
    """Plain Spark takes the value from the name of the folder."""
    assert folder_name("topic", value) == folder


def test_a_folder_is_never_longer_than_a_file_system_allows():
    """Retry topics may be so long that their escaped name would not fit; two such topics stay distinct."""
    first, second = (folder_name("topic", "%" * 120 + "x" * 100 + last) for last in "ab")
    assert len(first.encode()) <= 255
    assert first != second


def test_maintenance_merges_closed_days_and_keeps_every_row(export: Export):
    """Small files of a past day become one per topic; orphans are removed when they are old enough."""
    for begin in range(0, 60, 6):
        export.commit(begin, begin + 6)
    before = lake_rows(export.path)
    count = len(DeltaTable(export.path).file_uris())
    maintenance = Maintenance(export.location, interval_ms=1, vacuum_hours=0)
    assert maintenance.run(lambda: None) > 0
    assert lake_rows(export.path).equals(before)
    assert len(DeltaTable(export.path).file_uris()) < count
    assert days_to_merge(open_table(export.location), date(2026, 1, 1)) == []
    assert export.committed() == export.log.end
    assert maintenance.run(lambda: None) == 0


def test_the_footers_of_rewritten_files_have_no_bodies(tmp_path: Path):
    """A query of any column reads the footer of each file."""
    export = Export(tmp_path, segment_size=1 << 20)
    log = export.log
    for _ in range(6):
        log.append(os.urandom(1 << 16), store_timestamp=START_MS)
    log.save()
    end = len(log.offsets)
    for begin, until in ((0, 61), (61, 63), (63, 65), (65, end)):
        export.commit(begin, until)

    def footers() -> list[int]:
        return [
            pq.read_metadata(export.path / file.path).serialized_size for file in open_table(export.location).files()
        ]

    Maintenance(export.location, interval_ms=1, vacuum_hours=0).run(lambda: None)
    assert max(footers()) < 20_000
    cut = export.lake.epochs.begin(export.offset(64), 0)
    lake = Lake(export.location, "export", cut)
    lake.truncate(Cursor(export.store_id, cut.epoch, export.offset(64), 0), [])
    assert offsets_in(export.path) == log.offsets[:64]
    assert max(footers()) < 20_000


def test_files_of_one_transaction_are_not_written_twice(export: Export):
    """Its writers made them as large as its rows allow; with files of an earlier one they are merged."""
    export.commit(0, 30)
    first = frozenset(file.path for file in open_table(export.location).files())
    maintenance = Maintenance(export.location, interval_ms=1, vacuum_hours=0)
    assert maintenance.run(lambda: None, added=first) == 0
    export.commit(30, 60)
    files = frozenset(file.path for file in open_table(export.location).files())
    assert maintenance.run(lambda: None, added=files) == 0
    assert maintenance.run(lambda: None, added=files - first) > 0
    assert offsets_in(export.path) == export.log.offsets


def test_a_file_that_is_large_enough_is_followed_by_another(export: Export, monkeypatch: pytest.MonkeyPatch):
    """By its compressed size; no row is lost between the two, and maintenance knows the names of both."""
    monkeypatch.setattr(parquet_files, "BUFFERED_BYTES_MAX", 1)
    monkeypatch.setattr(parquet_files, "TARGET_SIZE", 1)
    monkeypatch.setattr(export, "write", functools.partial(export.write, options=TableOptions(batch_rows=7)))
    export.commit(0, 60)
    files = open_table(export.location).files()
    partitions = {tuple(file.partition.values()) for file in files}
    assert len(files) > len(partitions)
    assert offsets_in(export.path) == export.log.offsets
    before = set(export.path.rglob("topic=*/*/*.parquet"))
    assert before == {export.path / file.path for file in files}
    finish, finished = PartitionFile.finish, []

    def full_disk(file: PartitionFile) -> ParquetFile:
        finished.append(file)
        if len(finished) == 4:
            raise OSError(28, "No space left on device")
        return finish(file)

    monkeypatch.setattr(PartitionFile, "finish", full_disk)
    with pytest.raises(OSError, match="No space left"):
        export.write(0, 60)
    assert set(export.path.rglob("topic=*/*/*.parquet")) == before


def test_an_open_day_is_left_alone(export: Export):
    """Its files are small because they are new."""
    export.commit(0, 3)
    export.commit(3, 6)
    assert days_to_merge(open_table(export.location), date(2023, 11, 15)) == []
    assert days_to_merge(open_table(export.location), date(2023, 11, 16)) == [("2023-11-15", 128 * MIB)]


def test_transactions_leave_few_files_whatever_their_number(export: Export):
    """Files of the current day are merged after some transactions, and no row changes."""
    clock = START_MS / 1000
    maintenance = Maintenance(export.location, interval_ms=60_000, vacuum_hours=0, now=lambda: clock)
    counts = []
    for number in range(20):
        export.commit(number, number + 1)
        maintenance.after_commit(lambda: None)
        counts.append(len(DeltaTable(export.path).file_uris()))
    assert counts[-1] < 20
    assert max(counts) <= 3 * (ALIKE_FILES_MAX + COMMITS_BETWEEN_LOOKS)
    assert offsets_in(export.path) == export.log.offsets[:20]
    assert export.committed() == export.offset(20)


def test_a_lake_whose_files_are_not_to_be_merged_is_left_alone(export: Export):
    """By an interval of 0."""
    maintenance = Maintenance(export.location, interval_ms=0, vacuum_hours=0)
    for number in range(20):
        export.commit(number, number + 1)
        assert maintenance.after_commit(lambda: None) == 0


def test_only_files_that_reput_wrote_are_removed(export: Export):
    """Other files in the folder of a lake stay, however old; orphans and merged files are removed."""
    for begin in range(0, 60, 6):
        export.commit(begin, begin + 6)
    orphans = [export.path / file.path for file in export.write(0, 60)]
    DeltaTable(export.path).delete('"commitLogOffset" < 100')
    Maintenance(export.location, interval_ms=1, vacuum_hours=0).run(lambda: None)
    folder = orphans[0].parent
    kept = [export.path / "notes.ipynb", export.path / "sub" / "README.md", folder / "mine.parquet", folder / "x.csv"]
    for path in kept:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"mine")
    before = lake_rows(export.path)
    for path in export.path.rglob("*"):
        if path.suffix == ".json":
            path.write_text(re.sub(r'"deletionTimestamp":\d+', '"deletionTimestamp":1', path.read_text()))
        os.utime(path, (1, 1))
    assert Maintenance(export.location, interval_ms=1, vacuum_hours=1).run(lambda: None) > len(orphans)
    assert lake_rows(export.path).equals(before)
    tables = {"_delta_log", "_watermarks"}
    files = {path for path in export.path.rglob("*") if path.is_file() and tables.isdisjoint(path.parts)}
    named = {export.path / name for name in (file.path for file in open_table(export.location).files())}
    assert files == named | {*kept}


def test_files_that_cannot_be_merged_are_one_sentence(export: Export, monkeypatch: pytest.MonkeyPatch):
    """With advice, as for a commit; the exported rows are there."""
    export.commit(0, 3)
    export.commit(3, 6)

    def refuse(*arguments: Any, **options: Any) -> None:
        raise DeltaError("no space left")

    monkeypatch.setattr("deltalake.table.TableOptimizer.compact", refuse)
    with pytest.raises(DispatcherError, match=r"the files of the lake cannot be merged: lake=.* error=no space left"):
        Maintenance(export.location, interval_ms=1, vacuum_hours=0).run(lambda: None)
    assert offsets_in(export.path) == export.log.offsets[:6]


@pytest.mark.parametrize(
    ("sizes", "closed", "worth"),
    [
        ([MIB], True, False),
        ([MIB, MIB], True, True),
        ([100 * MIB, MIB], True, True),
        ([100 * MIB, 100 * MIB], True, False),
        ([40 * MIB, 40 * MIB], True, True),
        ([MIB // 4] * 4, False, False),
        ([MIB] * 4, False, False),
        ([100 * MIB] * 99, False, False),
    ],
)
def test_which_files_are_worth_merging(sizes: list[int], closed: bool, worth: bool):
    """No file below 8 MiB stays in a past day if there is another to merge it with."""
    assert (merged_size(sizes, closed) is not None) is worth


@pytest.mark.parametrize(
    ("sizes", "merged"),
    [
        ([9000] * 5, MIB),
        ([9000] * 5 + [MIB] * 5, MIB),
        ([9000, MIB, MIB, MIB, MIB], 8 * MIB),
        ([9000, 7 * MIB] + [30 * MIB] * 3, 128 * MIB),
        ([600_000] * 5, 8 * MIB),
    ],
)
def test_files_of_a_day_that_is_on_are_merged_with_those_of_their_size(sizes: list[int], merged: int):
    """So a row is rewritten a few times, and not for every few small files."""
    assert merged_size(sizes, closed=False) == merged
