"""A lake in Iceberg's format: the same exactness as in Delta's, by the same steps and kills."""

from __future__ import annotations

import inspect
import json
import os
import sqlite3
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from pyiceberg.catalog.sql import SqlCatalog

import reput.table
from reput.errors import ConfigError, DispatcherError
from reput.store.state.epochs import read_epochs
from reput.table import LogTable, TableOptions
from reput_hooks import Cursor
from reput_plugins.spark_export import check_lake, export
from reput_plugins.spark_export.lake import Lake
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lake_sink import SinkPlan, WrittenRange, commit_ranges, write_ranges
from reput_plugins.spark_export.lakes import iceberg_table
from reput_plugins.spark_export.lakes.iceberg_catalog import open_catalog
from reput_plugins.spark_export.lakes.opening import open_table
from reput_plugins.spark_export.maintenance import Maintenance
from reput_plugins.spark_export.parquet_files import lake_schema
from spark.exporting import without_spark
from spark.lakes import offsets_in
from written_log import START_MS, WrittenLog

SCHEMA = lake_schema(TableOptions().row_format)
DAY_MS = 86_400_000
ICEBERG: Any = {"lake_format": "iceberg"}


class Export:
    """A log of 60 records over three days, and an Iceberg table that takes in parts of it."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.log = WrittenLog(root / "store")
        for number in range(60):
            topic = ("orders", "%RETRY%a|b", "订单")[number % 3].encode()
            self.log.append(b"%d" % number * 10, topic=topic, store_timestamp=START_MS + DAY_MS * number // 20)
        self.log.save()
        self.ends = [*self.log.offsets, self.log.end]
        self.path = root / "lake"
        self.location = LakeLocation.of(self.path, **ICEBERG, **options)
        self.epochs = read_epochs(self.log.store, LogTable(self.log.store).store_id)
        self.lake = Lake(self.location, "export", self.epochs)
        self.lake.create(SCHEMA, None)
        self.plan = SinkPlan(str(self.log.store), self.location, "export", TableOptions()).of_table()

    def write(self, begin: int, until: int) -> WrittenRange:
        """Write the files of records number *begin* up to *until*."""
        ranges = pa.record_batch({"begin": [self.ends[begin]], "until": [self.ends[until]]})
        return write_ranges(self.plan, iter([ranges]))

    def commit(self, begin: int, until: int) -> None:
        """Write and commit these records."""
        commit_ranges(self.plan, [self.write(begin, until)])

    def offsets(self) -> list[int]:
        """Return the commit-log offsets that pyiceberg's own scan finds, ascending."""
        return offsets_in(self.path)

    def table(self) -> Any:
        """Return the table as it is now."""
        return open_table(self.location)

    def files(self) -> set[str]:
        """Return the Parquet files that exist."""
        return {str(path.relative_to(self.path)) for path in self.path.glob("topic=*/*/*.parquet")}


@pytest.fixture
def iceberg(tmp_path: Path) -> Export:
    """Return an export that has not begun."""
    return Export(tmp_path)


def test_rows_come_back_as_they_are_in_the_log(iceberg: Export):
    """Every column, by pyiceberg's own reading, by the ids in the files and by the files alone."""
    for begin in range(0, 60, 20):
        iceberg.commit(begin, begin + 20)
    expected = reput.table.read(iceberg.log.store)
    table = iceberg.table()
    for found in (table.table.scan().to_arrow(), table.dataset().to_table()):
        found = found.sort_by("commitLogOffset").select(expected.column_names)
        assert found.cast(expected.schema).equals(expected)
    assert [file.row_count for file in table.files()] == [6, 7, 7] * 3 or sum(f.row_count for f in table.files()) == 60
    (entry,) = table.history(1)
    assert (entry.info["reput"]["from"], entry.info["reput"]["until"]) == (iceberg.ends[40], iceberg.ends[60])


def test_a_batch_that_comes_again_is_not_added_twice(iceberg: Export):
    """A committer that was killed after its commit repeats everything: the table already knows."""
    iceberg.commit(0, 20)
    iceberg.commit(0, 20)
    iceberg.commit(0, 10)
    assert iceberg.offsets() == iceberg.log.offsets[:20]
    assert iceberg.files() == {file.path for file in iceberg.table().files()}


def test_two_commits_at_once_are_one(iceberg: Export, monkeypatch: pytest.MonkeyPatch):
    """pyiceberg would repeat the second append on top of the first one, whatever the table's settings say."""
    iceberg.commit(0, 20)
    pending = iceberg.table().table.transaction()
    pending.set_properties({"commit.retry.num-retries": "4"})
    pending.commit_transaction()
    written, stale = iceberg.write(20, 40), iceberg.table()
    iceberg.commit(20, 50)
    with monkeypatch.context() as late:
        late.setattr("reput_plugins.spark_export.lake.open_table", lambda location: stale)
        with pytest.raises(DispatcherError):
            commit_ranges(iceberg.plan, [written])
    assert iceberg.offsets() == iceberg.log.offsets[:50]
    iceberg.commit(50, 60)
    assert iceberg.offsets() == iceberg.log.offsets


def test_exporters_of_two_stores_do_not_stop_each_other(iceberg: Export, monkeypatch: pytest.MonkeyPatch):
    """Iceberg refuses a commit after any other one; nothing of this log has changed, so it is made on top of that."""
    iceberg.commit(0, 20)
    stale = [iceberg.table()]
    other = Lake(iceberg.location, "export", msgspec.structs.replace(iceberg.epochs, store_id="another"))
    other.go_on(iceberg.table(), Cursor("another", 1, 77, 0), [], [])
    monkeypatch.setattr(
        "reput_plugins.spark_export.lake.open_table",
        lambda location: stale.pop() if stale else open_table(location),
    )
    iceberg.commit(20, 60)
    assert iceberg.offsets() == iceberg.log.offsets
    assert not stale
    assert other.committed(iceberg.table()) == 77


class Killed(BaseException):
    """Stands for the end of the process."""


STEPS: list[tuple[Any, str]] = [
    (iceberg_table.IcebergLakeTable, "commit"),
    (SqlCatalog, "_write_metadata"),
    (SqlCatalog, "commit_table"),
]


@pytest.mark.parametrize("then", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize(("owner", "name"), STEPS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_batch_that_is_killed_at_any_step_is_in_the_table_once(
    iceberg: Export, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, then: bool
):
    """Then another one with other limits: no record is missing or there twice."""
    iceberg.commit(0, 10)
    real = inspect.getattr_static(owner, name)

    def killing(*arguments: Any, **named: Any) -> None:
        if then:
            (real.__func__ if isinstance(real, staticmethod) else real)(*arguments, **named)
        raise Killed

    with monkeypatch.context() as kill:
        kill.setattr("reput_plugins.spark_export.lake_sink.remove_files", lambda *arguments: None)
        kill.setattr(owner, name, staticmethod(killing) if isinstance(real, staticmethod) else killing)
        with pytest.raises(Killed):
            iceberg.commit(10, 30)
    assert iceberg.offsets() in (iceberg.log.offsets[:10], iceberg.log.offsets[:30])
    iceberg.commit(10, 30)
    iceberg.commit(30, 60)
    assert iceberg.offsets() == iceberg.log.offsets


def test_a_commit_whose_answer_is_lost_is_recognised(iceberg: Export, monkeypatch: pytest.MonkeyPatch):
    """The catalog took it, and then reported a conflict: the files stay, and the repetition adds nothing."""
    real = SqlCatalog.commit_table

    def lost(*arguments: Any) -> None:
        real(*arguments)
        raise OSError("connection lost")

    with monkeypatch.context() as failing:
        failing.setattr(SqlCatalog, "commit_table", lost)
        with pytest.raises(DispatcherError, match=r"the lake refused a commit: .*connection lost"):
            iceberg.commit(0, 20)
    iceberg.commit(0, 20)
    assert iceberg.offsets() == iceberg.log.offsets[:20]


def test_a_commit_that_is_made_after_its_error_finds_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, catalog: str
):
    """The server of a catalog may still be at work when its client gives up."""
    late = Export(tmp_path, catalog=catalog)
    real, given = SqlCatalog.commit_table, []

    def unanswered(*arguments: Any) -> None:
        given.append(arguments)
        raise OSError("no answer")

    with monkeypatch.context() as failing:
        failing.setattr(SqlCatalog, "commit_table", unanswered)
        with pytest.raises(DispatcherError, match=r"the lake refused a commit: .*no answer"):
            late.commit(0, 20)
    real(*given[0])
    late.commit(20, 40)
    found = late.table().dataset().to_table(columns=["commitLogOffset"])
    assert sorted(found["commitLogOffset"].to_pylist()) == late.log.offsets[:40]


def test_a_cut_removes_one_store_s_rows_only(iceberg: Export):
    """Files below it stay as they are; those with rows on both sides are written anew, in one snapshot."""
    iceberg.commit(0, 30)
    iceberg.commit(30, 60)
    before = {file.path for file in iceberg.table().files()}
    other = Lake(iceberg.location, "export", iceberg.epochs, "another store")
    other.truncate(Cursor(iceberg.epochs.store_id, 1, iceberg.ends[25], 0), [])
    assert iceberg.offsets() == iceberg.log.offsets
    version = iceberg.table().version()
    cut = Lake(iceberg.location, "export", iceberg.epochs.begin(iceberg.ends[25], 0))
    cut.truncate(Cursor(iceberg.epochs.store_id, cut.epochs.epoch, iceberg.ends[25], 0), [])
    table = iceberg.table()
    assert iceberg.offsets() == iceberg.log.offsets[:25]
    assert table.version() == version + 1
    assert cut.committed(table) == iceberg.ends[25]
    assert before & {file.path for file in table.files()}


def test_small_files_are_merged_and_orphans_removed(iceberg: Export):
    """The rows stay, the history has an end, and files of another kind are left alone."""
    for begin in range(0, 60, 5):
        iceberg.commit(begin, begin + 5)
    count = len(iceberg.table().files())
    stranger, orphan = iceberg.path / "mine.parquet", iceberg.write(0, 60).files[0].path
    stranger.write_bytes(b"mine")
    maintenance = Maintenance(iceberg.location, interval_ms=1, vacuum_hours=1)
    assert maintenance.run(lambda: None) > 0
    assert len(iceberg.table().files()) < count
    assert iceberg.offsets() == iceberg.log.offsets
    for path in iceberg.path.rglob("*"):
        os.utime(path, (0, 0))
    maintenance.run(lambda: None)
    assert stranger.exists()
    assert not (iceberg.path / orphan).exists()
    assert iceberg.offsets() == iceberg.log.offsets
    iceberg.commit(0, 60)


def test_old_snapshots_are_forgotten(iceberg: Export, monkeypatch: pytest.MonkeyPatch):
    """The table's metadata names each snapshot, so their number is limited; what the table has is not touched."""
    monkeypatch.setattr(iceberg_table, "SNAPSHOTS_MAX", 3)
    for begin in range(0, 60, 10):
        iceberg.commit(begin, begin + 10)
    iceberg.table().trim_history()
    table = iceberg.table()
    assert len(list(table.history())) == len(table.table.snapshots()) == 3
    assert iceberg.lake.committed(table) == iceberg.log.end
    assert iceberg.offsets() == iceberg.log.offsets


def test_a_rolled_back_table_is_filled_again(iceberg: Export):
    """The snapshots say how far the table holds the log, so a rollback in Iceberg's own way loses nothing."""
    iceberg.commit(0, 20)
    first = iceberg.table().table.current_snapshot().snapshot_id
    iceberg.commit(20, 40)
    table = iceberg.table().table
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    assert iceberg.lake.committed(iceberg.table()) == iceberg.ends[20]
    iceberg.commit(20, 60)
    assert iceberg.offsets() == iceberg.log.offsets


def test_columns_are_added_and_foreign_ones_stay(iceberg: Export):
    """As in a Delta table; merging keeps them."""
    iceberg.commit(0, 30)
    with iceberg.table().table.update_schema() as update:
        update.union_by_name(pa.schema([("note", pa.string())]))
    schema = SCHEMA.append(pa.field("later", pa.int64()))
    table = iceberg.lake.create(schema, None)
    assert table.schema().names[-2:] == ["note", "later"]
    iceberg.commit(30, 60)
    assert Maintenance(iceberg.location, interval_ms=1, vacuum_hours=0).run(lambda: None) > 0
    rows = iceberg.table().dataset().to_table()
    assert rows["note"].null_count == rows["later"].null_count == 60
    assert iceberg.offsets() == iceberg.log.offsets
    with pytest.raises(ConfigError, match="column=queueId type=int32 needed=string"):
        iceberg.lake.create(SCHEMA.set(SCHEMA.get_field_index("queueId"), pa.field("queueId", pa.string())), None)


def test_one_command_makes_the_table_and_goes_on(iceberg: Export, tmp_path: Path):
    """The catalog lies beside the files; a second run has nothing to do; another format is not mixed in."""
    lake = tmp_path / "one"
    with without_spark():
        first = export(iceberg.log.store, lake, until=iceberg.ends[20], **ICEBERG)
        second = export(iceberg.log.store, lake, **ICEBERG)
        third = export(iceberg.log.store, lake, **ICEBERG)
    assert (first.records, second.records, third.records) == (20, 40, 0)
    assert offsets_in(lake) == iceberg.log.offsets
    with pytest.raises(ConfigError, match=r"the lake has another format: .*format=iceberg asked=delta"):
        export(iceberg.log.store, lake)


def test_what_does_not_fit_is_refused(iceberg: Export, tmp_path: Path):
    """A catalog for a Delta table, an unknown catalog, a bucket without catalog, a table that was moved."""
    with pytest.raises(ConfigError, match="only Iceberg tables have a catalog"):
        LakeLocation.of(tmp_path, catalog="mine")
    with pytest.raises(ConfigError, match="pyiceberg has no such catalog: catalog=absent"):
        open_table(LakeLocation.of(tmp_path, catalog="absent", **ICEBERG))
    with pytest.raises(ConfigError, match="needs a catalog"):
        open_table(LakeLocation.of("s3://bucket/lake", **ICEBERG))
    iceberg.commit(0, 20)
    moved = iceberg.path.rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match="An Iceberg table cannot be moved"):
        open_table(LakeLocation.of(moved, **ICEBERG))


@pytest.mark.parametrize("kind", ["*.metadata.json", "snap-*.avro", "*-m0.avro"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"garbage" + data,
        lambda data: data[: len(data) // 2] + bytes(40) + data[len(data) // 2 + 40 :],
    ],
    ids=["half", "empty", "garbage", "overwritten"],
)
def test_damaged_metadata_is_one_sentence(iceberg: Export, kind: str, damage: Callable[[bytes], bytes]):
    """Whatever pyiceberg raises at it, which are errors of many kinds: in an export and in a check."""
    iceberg.commit(0, 20)
    for path in (iceberg.path / "metadata").glob(kind):
        path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DispatcherError, match=f"the lake cannot be read: lake={iceberg.path} error="), without_spark():
        export(iceberg.log.store, iceberg.path, **ICEBERG)
    with pytest.raises(DispatcherError, match=f"the lake cannot be read: lake={iceberg.path} error="):
        check_lake(iceberg.log.store, iceberg.path)


def test_the_catalog_has_the_settings_of_the_object_store(catalog: str):
    """By all names that the library which writes the data files takes; else metadata would go elsewhere."""
    names = ("AWS_ENDPOINT_URL", "aws_access_key_id", "secret_access_key", "TOKEN", "aws_default_region")
    given = {name: f"value of {name}" for name in names}
    opened = open_catalog(LakeLocation.of("s3://bucket/lake", given, catalog=catalog, **ICEBERG), create=False)
    assert opened is not None
    kinds = ("endpoint", "access-key-id", "secret-access-key", "session-token", "region")
    assert [opened.properties[f"s3.{kind}"] for kind in kinds] == list(given.values())
    opened.close()


def test_a_folder_has_one_table_of_one_catalog(iceberg: Export, tmp_path: Path, catalog: str):
    """A second one would get every row again, and its maintenance would take the first one's files for leftovers."""
    lake, log = tmp_path / "one", iceberg.log
    named: Any = {**ICEBERG, "catalog": catalog, "catalog_table": "sales.messages"}
    with without_spark():
        export(log.store, lake, **named)
        for other in (ICEBERG, {**named, "catalog_table": "sales.others"}):
            with pytest.raises(ConfigError, match=f"the lake's table is not in this catalog: lake={lake} catalog="):
                export(log.store, lake, **other)
        iceberg.commit(0, 20)
        with pytest.raises(ConfigError, match="the lake's table is not in this catalog: "):
            export(log.store, iceberg.path, **{**named, "catalog_table": "sales.others"})
        # A creation that was killed before its catalog knew of it is made up for.
        begun = tmp_path / "begun" / "metadata"
        begun.mkdir(parents=True)
        (begun / f"00000-{uuid.uuid4()}.metadata.json").write_text("{}")
        assert export(log.store, begun.parent, **ICEBERG).records == 60
    with pytest.raises(ConfigError, match=r"not in this catalog: .*catalog=none") as raised:
        check_lake(log.store, lake)
    assert "--catalog" in raised.value.advice
    assert check_lake(log.store, lake, **named).ok


def test_a_broken_catalog_is_one_sentence(iceberg: Export):
    """Not SQLAlchemy's page of text."""
    with sqlite3.connect(iceberg.path / "catalog.db") as database:
        database.execute("drop table iceberg_tables")
    database.close()
    (iceberg.path / "catalog.db").write_bytes(b"no database" * 100)
    with pytest.raises(DispatcherError, match=r"the lake cannot be read: lake=.*not a database") as raised:
        iceberg.table()
    assert json.dumps(str(raised.value)).count("\\n") <= 1
