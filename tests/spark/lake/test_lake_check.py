"""check --lake: a lake compared with its log, row by row; whatever was changed in the lake is named by its offset."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from reput.errors import ConfigError, StoreError
from reput.store.disk.sealed_file import seal
from reput.store.state.epochs import read_epochs
from reput.store.state.identity import StoreIdentity
from reput_plugins.spark_export import check_lake

# Imported before exports run without Spark, so that it keeps the real one.
from reput_plugins.spark_export.engine import ranges
from reput_plugins.spark_export.export_job import export
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.maintenance import Maintenance
from spark.exporting import without_spark
from spark.lakes import lake_rows
from written_log import START_MS, WrittenLog

ONE, TWO = "1a" * 16, "2b" * 16
DAY_MS = 86_400_000
COUNT = 60


@pytest.fixture(autouse=True)
def exported_here() -> Iterator[None]:
    """Make exports do their work in this process."""
    with without_spark():
        yield


def written(store: Path, store_id: str = ONE, count: int = COUNT) -> WrittenLog:
    """Return a log of two topics and two days, in small segments, like one written by reput."""
    log = WrittenLog(store, segment_size=1 << 12)
    append(log, count)
    (store / "reput").mkdir()
    (store / "reput" / "store.json").write_bytes(seal(StoreIdentity(1, store_id, {})))
    return log


def append(log: WrittenLog, count: int) -> None:
    """Append records with properties, and write the log."""
    for number in range(count):
        log.append(
            b"%d" % number * 20,
            topic=(b"orders", b"payments")[number % 2],
            properties=b"TAGS\x01t%d\x02KEYS\x01k%d\x02" % (number % 3, number),
            store_timestamp=START_MS + DAY_MS * (number // 40),
        )
    log.save()


class Lake:
    """A log and its lake."""

    def __init__(self, root: Path) -> None:
        self.path = root / "lake"
        self.log = written(root / "store")
        export(self.log.store, self.path)

    def check(self, **options: Any) -> Any:
        """Return the report."""
        return check_lake(self.log.store, self.path, **options)

    def tamper(self, change: Callable[[pa.Table], pa.Table]) -> None:
        """Replace all rows with changed ones, as any writer of Delta tables can."""
        table = DeltaTable(self.path)
        rows = change(table.to_pyarrow_table().sort_by("commitLogOffset"))
        write_deltalake(table, rows, mode="overwrite", partition_by=["topic", "date"])


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a lake that has everything."""
    return Lake(tmp_path)


def with_value(rows: pa.Table, number: int, column: str, value: Any) -> pa.Table:
    """Return *rows* with another value in one place."""
    place = rows.schema.get_field_index(column)
    values = rows[column].to_pylist()
    values[number] = value
    return rows.set_column(place, rows.schema.field(column), pa.array(values, rows.schema.field(column).type))


def counts_of(report: Any) -> dict[str, int]:
    """Return the counts of a report that are not zero."""
    found = {name: getattr(report.lake, name) for name in report.lake.__struct_fields__ if name.endswith("_count")}
    return {name.removesuffix("_count"): count for name, count in found.items() if count}


def test_a_lake_that_was_only_exported_to_equals_its_log(lake: Lake):
    """Also after its files were merged and vacuumed, with further records in the log, which the lake lags behind."""
    for _ in range(3):
        append(lake.log, 20)
        export(lake.log.store, lake.path)
    Maintenance(LakeLocation.of(lake.path), interval_ms=1, vacuum_hours=0).run(lambda: None)
    DeltaTable(lake.path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    report = lake.check()
    assert report.ok
    assert report.views["lake"].state == "equal"
    assert counts_of(report) == {}
    assert report.lake.rows == report.lake.records == COUNT + 60
    assert (report.lake.watermarks.count, report.lake.watermarks.rows) == (4, COUNT + 60)
    assert report.lake.watermarks.until == lake.log.end == report.lake.until
    end = lake.log.end
    append(lake.log, 5)
    behind = lake.check()
    assert behind.ok
    assert behind.views["lake"].state == "behind"
    assert behind.views["lake"].behind_bytes == lake.log.end - end


CHANGES: list[tuple[str, Any]] = [
    ("queueId", 77),
    ("queueOffset", 77),
    ("storeSize", 99),
    ("storeSize", 4000),
    ("storeSize", None),
    ("msgId", "another"),
    ("offsetMsgId", None),
    ("tags", "another"),
    ("keys", None),
    ("body", b"another"),
    ("properties", [("TAGS", "another")]),
    ("flag", 1),
    ("sysFlag", 8),
    ("bodyCRC", 1),
    ("reconsumeTimes", 3),
    ("bornTimestamp", None),
    ("bornHost", "127.0.0.2:1"),
    ("storeHost", None),
    ("preparedTransactionOffset", 5),
    ("brokerName", "broker"),
]


def test_a_row_that_was_changed_is_named_with_its_column(lake: Lake):
    """In each column, one after the other; the columns that a folder names are the next test's."""
    for column, value in CHANGES:
        original = DeltaTable(lake.path).version()
        lake.tamper(lambda rows, column=column, value=value: with_value(rows, 17, column, value))
        report = lake.check()
        assert not report.ok
        assert counts_of(report) == {"changed": 1}, column
        text = f"row differs from its record: commit_log_offset={lake.log.offsets[17]} column={column}"
        assert text in report.views["lake"].differences
        DeltaTable(lake.path).restore(original)
    assert {column for column, _ in CHANGES} | {"topic", "date", "storeTimestamp", "commitLogOffset", "store"} == {
        field.name for field in DeltaTable(lake.path).schema().fields
    }


def test_a_row_in_the_folder_of_another_topic_or_day_is_named(lake: Lake):
    """Readers take topic and date from there."""
    at = lake.log.offsets[17]
    for column, value in (("topic", "orders"), ("date", None)):
        original = DeltaTable(lake.path).version()
        lake.tamper(lambda rows, column=column, value=value: with_value(rows, 17, column, value))
        report = lake.check()
        assert counts_of(report) == {"changed": 1}
        assert report.views["lake"].differences[0].endswith(f"commit_log_offset={at} column={column}")
        DeltaTable(lake.path).restore(original)


def test_rows_that_are_missing_doubled_or_superfluous_are_named(lake: Lake):
    """All at once; the missing ones as ranges of the log. Their watermark differs, too."""
    offsets = lake.log.offsets

    def change(rows: pa.Table) -> pa.Table:
        kept = pa.concat_tables([rows.slice(0, 10), rows.slice(13, 30), rows.slice(44), rows.slice(20, 1)])
        extra = with_value(rows.slice(5, 1), 0, "commitLogOffset", offsets[5] + 3)
        beyond = with_value(rows.slice(6, 1), 0, "commitLogOffset", lake.log.end)
        nowhere = with_value(rows.slice(7, 1), 0, "commitLogOffset", None)
        return pa.concat_tables([kept, extra, beyond, nowhere])

    lake.tamper(change)
    report = lake.check()
    assert not report.ok
    assert counts_of(report) == {"missing": 4, "doubled": 1, "extra": 3}
    assert [(found.begin, found.until, found.records) for found in report.lake.missing] == [
        (offsets[10], offsets[13], 3),
        (offsets[43], offsets[44], 1),
    ]
    texts = report.views["lake"].differences
    assert f"row without a record: commit_log_offset={offsets[5] + 3}" in texts
    assert f"row behind the lake's end: commit_log_offset={lake.log.end}" in texts
    assert f"record has several rows: commit_log_offset={offsets[20]} rows=2" in texts
    assert any(text.startswith("row without a commit-log offset: file=topic=payments/date=") for text in texts)
    assert any(text.startswith("rows differ from their watermark: from=0 ") for text in texts)


def test_a_row_given_to_another_store_is_missing(lake: Lake):
    """If the lake knows no such store, the row is named as well."""
    at = lake.log.offsets[17]
    lake.tamper(lambda rows: with_value(rows, 17, "store", TWO))
    report = lake.check()
    assert counts_of(report) == {"missing": 1, "foreign": 1}
    text = f"row of a store that is not in the lake: store={TWO} commit_log_offset={at}"
    assert text in report.views["lake"].differences


def test_a_file_that_is_gone_damaged_or_wrongly_described_is_named(lake: Lake):
    """Its records have no row, whatever the table says."""
    original = DeltaTable(lake.path).file_uris()
    path = Path(unquote(original[0]))
    kept = path.read_bytes()
    count = pq.read_metadata(path).num_rows
    for change in (path.unlink, lambda: path.write_bytes(b"PAR1" + kept[4:-8] + bytes(8))):
        change()
        report = lake.check()
        assert counts_of(report) == {"missing": count, "unreadable": 1}
        assert any(
            text.startswith("a file of the lake cannot be read: file=topic=")
            for text in report.views["lake"].differences
        )
        path.write_bytes(kept)
    (log,) = (path for path in (lake.path / "_delta_log").glob("*.json") if '"add"' in path.read_text())
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            stats = json.loads(action["add"]["stats"])
            stats["maxValues"]["commitLogOffset"] = stats["minValues"]["commitLogOffset"]
            action["add"]["stats"] = json.dumps(stats)
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))
    report = lake.check()
    assert counts_of(report) == {"hidden": len(original)}
    assert report.views["lake"].differences[0].startswith("row outside the statistics of its file: commit_log_offset=")


def test_rows_of_cut_history_are_named_until_the_export_takes_them_out(lake: Lake):
    """Afterwards the watermarks agree with the rows that stay."""
    log = lake.log
    append(log, 20)
    export(log.store, lake.path)
    cut = log.offsets[70]
    (log.store / "reput" / "epochs").write_bytes(read_epochs(log.store, ONE).begin(cut, START_MS).seal())
    for path in (log.store / "commitlog").iterdir():
        path.unlink()
    log.data, log.offsets = log.data[:cut], log.offsets[:70]
    append(log, 3)
    report = lake.check()
    assert counts_of(report) == {"cut": 10}
    assert f"row of cut history: commit_log_offset={cut}" in report.views["lake"].differences
    assert report.views["lake"].stale_count == 10
    export(log.store, lake.path)
    report = lake.check()
    assert report.ok
    assert (report.lake.watermarks.count, report.lake.watermarks.rows) == (3, 73)


def test_a_file_from_which_the_export_took_some_rows_is_still_compared(lake: Lake):
    """The library rewrites such a file with other types of text than reput's files have."""
    log, cut = lake.log, lake.log.offsets[55]
    (log.store / "reput" / "epochs").write_bytes(read_epochs(log.store, ONE).begin(cut, START_MS).seal())
    for path in (log.store / "commitlog").iterdir():
        path.unlink()
    log.data, log.offsets = log.data[:cut], log.offsets[:55]
    append(log, 3)
    export(log.store, lake.path)
    report = lake.check()
    assert report.ok
    assert (report.lake.rows, report.lake.watermarks.rows) == (58, 58)


def test_rows_whose_records_retention_removed_are_counted_and_no_error(lake: Lake):
    """Their watermark still proves them."""
    log = lake.log
    removed, last = sorted((log.store / "commitlog").iterdir())[:2]
    removed.unlink()
    below = sum(at < int(last.name) for at in log.offsets)
    report = lake.check()
    assert report.ok
    assert counts_of(report) == {"uncheckable": below}
    assert report.views["lake"].expired_count == below
    assert report.lake.records == COUNT - below
    assert report.lake.watermarks.rows == COUNT
    lake.tamper(lambda rows: with_value(rows, 0, "bodyCRC", 5))
    report = lake.check()
    assert not report.ok
    assert report.views["lake"].differences[0].startswith("rows differ from their watermark: from=0 ")


def test_damage_that_the_lake_left_out_is_known(tmp_path: Path):
    """Damage that came later is not: it is damage of the log, and its row is counted as unverified."""
    log = written(tmp_path / "store")
    known, later = log.offsets[20], log.offsets[30]
    log.data[known + 90] ^= 1
    log.save()
    export(log.store, tmp_path / "lake", on_corruption="report")
    report = check_lake(log.store, tmp_path / "lake")
    assert report.ok
    assert [(found.begin, found.end) for found in report.lake.left_out] == [(known, log.offsets[21])]
    log.data[later + 90] ^= 1
    log.save()
    report = check_lake(log.store, tmp_path / "lake")
    assert not report.ok
    assert [(found.begin, found.end) for found in report.damage] == [(later, log.offsets[31])]
    assert counts_of(report) == {"unverified": 1}
    log.data[later + 90] ^= 1
    log.data[known + 90] ^= 1
    log.save()
    report = check_lake(log.store, tmp_path / "lake")
    assert report.ok
    assert counts_of(report) == {"left_out": 1}


def test_a_lake_of_some_topics_is_compared_with_their_records(tmp_path: Path):
    """A row of another topic is superfluous."""
    log = written(tmp_path / "store")
    export(log.store, tmp_path / "lake", topics=["orders"])
    report = check_lake(log.store, tmp_path / "lake")
    assert report.ok
    assert report.lake.rows == report.lake.records == COUNT // 2
    export(log.store, tmp_path / "whole")
    rows = lake_rows(tmp_path / "whole")
    write_deltalake(tmp_path / "lake", rows.slice(17, 1), mode="append", partition_by=["topic", "date"])
    report = check_lake(log.store, tmp_path / "lake")
    assert counts_of(report) == {"extra": 1}
    text = f"row without a record that the lake keeps: commit_log_offset={log.offsets[17]}"
    assert text in report.views["lake"].differences


def test_each_store_of_a_lake_is_checked_for_itself(lake: Lake, tmp_path: Path):
    """Their files are merged into common ones; a store that the lake does not have is refused."""
    other = written(tmp_path / "other", TWO, 25)
    export(other.store, lake.path)
    for log in (lake.log, other):
        append(log, 5)
        export(log.store, lake.path)
    Maintenance(LakeLocation.of(lake.path), interval_ms=1, vacuum_hours=0).run(lambda: None)
    for log, count in ((lake.log, COUNT + 5), (other, 30)):
        report = check_lake(log.store, lake.path)
        assert report.ok
        assert (report.lake.rows, report.lake.watermarks.rows) == (count, count)
    stranger = written(tmp_path / "stranger", "3c" * 16, 7)
    with pytest.raises(StoreError, match="the lake has no rows of this store"):
        check_lake(stranger.store, lake.path)
    with pytest.raises(ConfigError, match="the engine is unknown: engine=flink"):
        lake.check(engine="flink")


def test_a_lake_without_the_column_store_is_compared(tmp_path: Path):
    """An older version made it; it has no watermarks."""
    from spark.lake.test_lake_stores import make_old

    log = written(tmp_path / "store")
    lake = tmp_path / "lake"
    export(log.store, lake)
    make_old(lake)
    report = check_lake(log.store, lake)
    assert report.ok
    assert (report.lake.store_name, report.lake.rows) == (None, COUNT)


def test_check_lake_prints_the_report(lake: Lake, capsys: pytest.CaptureFixture[str]):
    """As text or JSON, with the cost; exit code 1 if anything differs."""
    from reput.cli import main

    command = ["check", str(lake.log.store), "--lake", str(lake.path)]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert f"lake: {COUNT} rows of store {ONE}" in text
    assert "MB/s of the log\nok\n" in text
    lake.tamper(lambda rows: rows.slice(1))
    assert main([*command, "--format", "json"]) == 1
    row = json.loads(capsys.readouterr().out)
    assert row["views"]["lake"]["state"] == "different"
    assert row["lake"]["missing"] == [{"from": 0, "until": lake.log.offsets[1], "records": 1}]
    assert main(["check", str(lake.log.store), "--name", "export"]) == 2


@pytest.mark.spark
def test_spark_s_report_is_that_of_the_local_engine(spark: Any, lake: Lake):
    """Workers take ranges of the log and files of the lake."""
    assert ranges.engine_session
    lake.tamper(lambda rows: with_value(rows.slice(3), 17, "body", b"another"))
    reports = [lake.check(engine=engine) for engine in ("local", "spark")]
    cost = {"seconds": 0.0, "mb_per_s": 0.0}
    one, other = (msgspec.structs.replace(found, lake=msgspec.structs.replace(found.lake, **cost)) for found in reports)
    assert one == other
    assert counts_of(one) == {"changed": 1, "missing": 3}
