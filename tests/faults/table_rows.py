"""The fault matrix of tables and lakes: faults of the log from which they are made."""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import reput
import reput.table
from faults.rows import row
from reput.errors import DamagedStore
from reput.process.dispatcher.commit_log_reader import CommitLogReader
from reput.store.log.log_scan import LogScan
from reput.store.recovery.repair import cut
from reput_hooks import DispatchColumns
from written_log import WrittenLog

__all__: list[str] = []

SEGMENT_SIZE = 4096
EVENTS = ("retention", "cut", "RocketMQ")


@row(
    "Retention, a cut with `reput repair`, and another writer, in each order",
    "the log of a lake that is exported after each, or after all",
    "no row is twice; none is gone that the log does not contradict, and none from below its minimum",
)
def log_of_a_lake_changed(root: Path) -> int:
    if not (find_spec("deltalake") and find_spec("pyspark")):
        pytest.skip("the extra spark is not installed")
    from spark.exporting import without_spark

    orders = [(order, between) for order in itertools.permutations(EVENTS) for between in (True, False)]
    with without_spark():
        for number, (order, between) in enumerate(orders):
            change_log(root / str(number), order, between)
    return len(orders)


def change_log(root: Path, order: tuple[str, ...], between: bool) -> None:
    """Change the log in this *order*; *between*: the lake is updated after each change."""
    from reput_plugins.spark_export import export
    from spark.lakes import lake_rows, offsets_in

    store, lake = root / "store", root / "lake"
    put(store, 60, "first")
    export(store, lake)
    for number, event in enumerate(order):
        before = offsets_in(lake)
        if event == "retention":
            for path in sorted((store / "commitlog").iterdir())[:3]:
                path.unlink()
        elif event == "cut":
            cut(store, reput.table.read(store)["commitLogOffset"].to_pylist()[-4])
        else:
            write_as_rocketmq(store, root / f"theirs {number}")
        put(store, 3, event)
        if between:
            export(store, lake, fail_on_data_loss=False)
        minimum = begin_of(store)
        assert [at for at in offsets_in(lake) if at < minimum] == [at for at in before if at < minimum], order
    export(store, lake, fail_on_data_loss=False)
    assert max(Counter(offsets_in(lake)).values()) == 1, order
    expected, rows, minimum = reput.table.read(store), lake_rows(lake), begin_of(store)
    present = rows.filter([at >= minimum for at in rows["commitLogOffset"].to_pylist()])
    assert present.select(expected.column_names).cast(expected.schema).equals(expected), order


def begin_of(store: Path) -> int:
    """Return the log's beginning."""
    return min(int(path.name) for path in (store / "commitlog").iterdir())


def put(store: Path, count: int, text: str) -> None:
    """Open the store with reput and put *count* messages."""
    with reput.open(store, mode="inline", mapped_file_size_commit_log=SEGMENT_SIZE, dispatchers=[]) as opened:
        for number in range(count):
            opened.put(reput.Message("orders", f"{text} {number} ".encode() * 20))


def write_as_rocketmq(store: Path, aside: Path) -> None:
    """Append records after the log's end, without other traces."""
    rows = reput.table.read(store)
    end = rows["commitLogOffset"][-1].as_py() + rows["storeSize"][-1].as_py()
    begin = end - end % SEGMENT_SIZE
    theirs = WrittenLog(aside, SEGMENT_SIZE, begin)
    theirs.data += (store / "commitlog" / f"{begin:020d}").read_bytes()[: end - begin]
    for number in range(20):
        theirs.append(b"%d theirs" % number * 25, queue_offset=100 + number, store_timestamp=2**41 + number)
    theirs.save()
    shutil.copytree(aside / "commitlog", store / "commitlog", dirs_exist_ok=True)


@row(
    "A body changed on disk",
    "each way out of the log: get, query, records, a plugin, an Arrow table, Spark as batch and as damage, a lake",
    "no way hands it out; each refuses and names the place, and Spark's table of damage lists it",
)
def body_changed(root: Path) -> int:
    if not (find_spec("deltalake") and find_spec("pyspark")):
        pytest.skip("the extra spark is not installed")
    store = root / "store"
    with reput.open(store, mode="inline", mapped_file_size_commit_log=SEGMENT_SIZE) as opened:
        placed = [opened.put(reput.Message("orders", b"body %d" % n, keys=[f"k{n}"])) for n in range(60)]
        opened.wait_for("index", opened.appended)
    changed, end = placed[25].commit_log_offset, placed[25].next_commit_log_offset
    path = store / "commitlog" / f"{changed // SEGMENT_SIZE * SEGMENT_SIZE:020d}"
    data = bytearray(path.read_bytes())
    data[data.index(b"body 25") + 5] ^= 0x01
    path.write_bytes(data)
    ways = ways_out(store, root / "lake")
    for way in ways.values():
        with pytest.raises(DamagedStore, match=str(changed)):
            way()
    assert spark_rows(store, schemaMode="damage") == [(changed, end, "a CRC does not match")]
    return len(ways) + 1


def ways_out(store: Path, lake: Path) -> dict[str, Callable[[], object]]:
    """Return each way in which messages leave a log, by name."""
    from reput_plugins.spark_export import export
    from spark.exporting import without_spark

    def read(way: Callable[[Any], object]) -> object:
        with reput.open(store, read_only=True) as opened:
            return way(opened)

    def dispatched() -> object:
        scan, reader = LogScan(store), CommitLogReader(store)
        try:
            return [reader.read_many(columns) for columns in requests_of(scan)]
        finally:
            scan.close()
            reader.close()

    def exported() -> object:
        with without_spark():
            return export(store, lake)

    return {
        "get": lambda: read(lambda opened: opened.get("orders", 0, 25, 1)),
        "query": lambda: read(lambda opened: opened.query("orders", "k25")),
        "records": lambda: read(lambda opened: list(opened.records())),
        "plugin": dispatched,
        "Arrow": lambda: reput.table.read(store),
        "Spark": lambda: spark_rows(store),
        "lake": exported,
    }


def requests_of(scan: LogScan) -> Iterator[DispatchColumns]:
    """Yield the requests of the whole log in pieces."""
    at = scan.offset_min
    while at < scan.segments.offset_end and (found := scan.scan(at, scan.segments.offset_end)).columns:
        yield found.columns
        at = found.end


def spark_rows(store: Path, **options: str) -> list[tuple[Any, ...]]:
    """Return the rows of a Spark batch read, executed here."""
    from pyspark_reput import DefaultSource

    source = DefaultSource({"path": str(store), **options})
    reader = source.reader(source.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [tuple(found.values()) for batch in batches for found in batch.to_pylist()]
