"""``df.write.format("reput")``: rows become messages, each batch once, in spite of kills."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import reput.table
from reput.errors import ConfigError, MessageIllegal, StoreLocked
from reput.settings import Settings
from reput.store.check.check import check_store
from reput.store.disk.files import Files
from reput.store.message_store import MessageStore
from written_log import START_MS, WrittenLog

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("topic", pa.string()), ("body", pa.binary()), ("tags", pa.string())])


def bodies_in(store: Path) -> list[bytes]:
    """Return the bodies in the log, in order."""
    found: list[bytes] = reput.table.read(store, columns=["body"])["body"].to_pylist()
    return found


def write(frame: Any, store: Path, **options: Any) -> None:
    """Append a frame to a store."""
    frame.write.format("reput").mode("append").options(**options).save(str(store))


def test_rows_become_messages(spark: Any, tmp_path: Path):
    """In the order of the frame; the store assigns its own fields."""
    born = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
    rows = [(f"body {number}", "paid", {"k": "v"}, number % 2, born) for number in range(30)]
    columns = "body string, tags string, properties map<string,string>, queueId int, bornTimestamp timestamp"
    frame = spark.createDataFrame(rows, columns).coalesce(1)
    store = tmp_path / "store"
    write(frame, store, topic="orders")
    table = reput.table.read(store).to_pylist(maps_as_pydicts="strict")
    assert [row["body"] for row in table] == [b"body %d" % number for number in range(30)]
    row = table[3]
    assert (row["topic"], row["queueId"], row["queueOffset"], row["tags"]) == ("orders", 1, 1, "paid")
    assert row["bornTimestamp"] == born
    assert row["properties"]["k"] == "v"
    assert check_store(store, Settings()).damage == []


def test_a_named_write_that_is_repeated_puts_nothing(spark: Any, tmp_path: Path):
    """Without a name, a second write puts the rows again."""
    frame = spark.createDataFrame([("a",), ("b",)], "body string").coalesce(1)
    store = tmp_path / "store"
    for _ in range(2):
        write(frame, store, topic="orders", writeId="day-1")
    assert bodies_in(store) == [b"a", b"b"]
    write(frame, store, topic="orders")
    assert bodies_in(store) == [b"a", b"b", b"a", b"b"]
    assert [path.name for path in (store / "reput" / "spark_writes").iterdir()] == ["ledger"]


def test_rows_that_were_read_can_be_written_as_they_are(spark: Any, tmp_path: Path):
    """A stream from one store into another; a micro-batch that Spark commits again is not put twice."""
    log = WrittenLog(tmp_path / "from")
    checkpoint, target = tmp_path / "checkpoint", tmp_path / "to"

    def run() -> None:
        rows = spark.readStream.format("reput").option("startingOffsets", "earliest").load(str(log.store))
        writer = rows.writeStream.format("reput").option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start(str(target))
        try:
            query.awaitTermination()
        finally:
            query.stop()

    for expected in (40, 60):
        while len(log.offsets) < expected:
            log.append(b"body %d" % len(log.offsets), store_timestamp=START_MS + len(log.offsets))
        log.save()
        run()
    # As if the driver had been killed between the commit and Spark's own record of it.
    for path in checkpoint.glob("commits/*1*"):
        path.unlink()
    run()
    assert bodies_in(target) == [b"body %d" % number for number in range(60)]
    found = reput.table.read(target).to_pylist(maps_as_pydicts="strict")
    assert found[7]["keys"] == "k7"
    assert found[7]["tags"] == "t1"


@pytest.mark.parametrize("put_before", [0, 1, 3])
def test_a_commit_that_was_killed_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put_before: int):
    """The next one completes it from the same rows, after those in the log; rows that Spark repeats are dropped."""
    from pyspark_reput import write_ledger
    from pyspark_reput.write_ledger import WriteLedger, make_store, stage_rows

    monkeypatch.setattr(write_ledger, "ROWS_OF_BATCH", 1)
    store = tmp_path / "store"
    make_store(store)

    def stage(name: str, bodies: list[bytes]) -> None:
        rows = [{"topic": "orders", "body": body, "tags": "t"} for body in bodies]
        stage_rows(store, "w", name, iter([pa.RecordBatch.from_pylist(rows, SCHEMA)]), None)

    class Killed(Exception):
        pass

    def put_some(store: MessageStore, messages: Any) -> Any:
        if len(put) == put_before:
            raise Killed
        put.append(messages)
        return put_batch(store, messages)

    put: list[Any] = []
    put_batch = MessageStore.put_batch
    bodies = [b"%d" % number for number in range(5)]
    stage("first.arrow", bodies)
    with monkeypatch.context() as killed:
        killed.setattr(MessageStore, "put_batch", put_some)
        with pytest.raises(Killed):
            WriteLedger(store, "w", None).add(0, ["first.arrow"])
    stage("again.arrow", list(reversed(bodies)))
    WriteLedger(store, "w", None).add(0, ["again.arrow"])
    stage("next.arrow", [b"5"])
    WriteLedger(store, "w", None).add(1, ["next.arrow"])
    assert bodies_in(store) == [*bodies, b"5"]


def test_staged_rows_are_found_after_a_power_cut_where_the_ledger_counts_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Their names are forced before the ledger records that they are being put."""
    from pyspark_reput.write_ledger import WriteLedger, make_store, stage_rows

    store = tmp_path / "store"
    make_store(store)
    stage_rows(
        store, "w", "first.arrow", iter([pa.RecordBatch.from_pylist([{"topic": "t", "body": b"1"}], SCHEMA)]), None
    )
    happened: list[object] = []
    force, keep = Files.force_directory, WriteLedger.keep

    def force_directory(self: Files, path: Path) -> None:
        force(self, path)
        happened.append(path)

    def note(self: WriteLedger, written: Any) -> None:
        happened.append("ledger")
        keep(self, written)

    monkeypatch.setattr(Files, "force_directory", force_directory)
    monkeypatch.setattr(WriteLedger, "keep", note)
    WriteLedger(store, "w", None).add(0, ["first.arrow"])
    before = happened[: happened.index("ledger")]
    writes = store / "reput" / "spark_writes"
    assert {writes / "w", writes, writes.parent, store} <= set(before)


def test_a_store_that_somebody_has_open_is_not_written(tmp_path: Path):
    """The error names the process that has it; the rows are put when the write is retried."""
    from pyspark_reput.write_ledger import WriteLedger, stage_rows

    store = tmp_path / "store"
    batch = pa.RecordBatch.from_pylist([{"topic": "orders", "body": b"a", "tags": None}], SCHEMA)
    ledger = WriteLedger(store, "w", None)
    with reput.open(store, dispatchers=[], mode="inline"):
        stage_rows(store, "w", "a.arrow", iter([batch]), None)
        with pytest.raises(StoreLocked):
            ledger.add(0, ["a.arrow"])
    ledger.add(0, ["a.arrow"])
    assert bodies_in(store) == [b"a"]


@pytest.mark.parametrize(
    ("columns", "topic", "sentence"),
    [
        (["topic", "body", "price"], None, "column=price"),
        (["topic", "body", "value"], None, "columns=body,value"),
        (["body"], None, "column=topic"),
        (["tags"], "orders", "column=body"),
    ],
)
def test_columns_that_would_be_lost_are_refused(columns: list[str], topic: str | None, sentence: str):
    """So are rows that are not messages."""
    from pyspark_reput.row_messages import check_columns

    with pytest.raises(ConfigError, match=sentence):
        check_columns(columns, topic)


@pytest.mark.parametrize(
    ("column", "kind"),
    [("body", "int"), ("tags", "binary"), ("properties", "string"), ("bornTimestamp", "timestamp_ntz")],
)
def test_values_that_would_be_taken_for_something_else_are_refused(column: str, kind: str):
    """A number is not a body of that many zeros. A column of nulls may have Spark's type for them."""
    from pyspark_reput.row_messages import check_types

    check_types({"body": "string", "key": "binary", "partition": "smallint", "offset": "bigint", "tags": "void"})
    with pytest.raises(ConfigError, match=f"column={column} type={kind}"):
        check_types({"topic": "string", column: kind})


def test_a_message_that_rocketmq_refuses_is_refused_before_any_is_put(tmp_path: Path):
    """By the task that has it."""
    from pyspark_reput.write_ledger import stage_rows

    for row, sentence in (
        ({"topic": "a b"}, "illegal character"),
        ({"topic": "t", "body": bytes(5 << 20)}, "too long"),
    ):
        batch = pa.RecordBatch.from_pylist([{"topic": "orders", "body": b""}, row], SCHEMA)
        with pytest.raises(MessageIllegal, match=sentence):
            stage_rows(tmp_path, "w", "a.arrow", iter([batch]), None)


def test_times_that_python_has_no_dates_for_are_written():
    """Spark's timestamps go from long before the year 1 to long after 9999."""
    from pyspark_reput.row_messages import messages_of

    times = [-62_135_596_800_001_000, 253_402_300_800_000_999, -1, None]
    born = pa.array(times, pa.timestamp("us", "America/New_York"))
    rows = pa.record_batch({"topic": ["orders"] * 4, "body": [b""] * 4, "bornTimestamp": born})
    found = [message.born_timestamp for message in messages_of(rows, None)]
    assert found == [-62_135_596_800_001, 253_402_300_800_000, -1, None]
