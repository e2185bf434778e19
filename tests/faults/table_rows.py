"""The fault matrix of a lake: what happens to the log that it is made of, in each order."""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

import reput
from faults.rows import row
from reput.store.repair import cut
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
    """Change the log in this *order*; *between*: the lake is brought up to it after each change."""
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
    """Return where the log begins."""
    return min(int(path.name) for path in (store / "commitlog").iterdir())


def put(store: Path, count: int, text: str) -> None:
    """Open the store with reput and put *count* messages."""
    with reput.open(store, mode="inline", mapped_file_size_commit_log=SEGMENT_SIZE, dispatchers=[]) as opened:
        for number in range(count):
            opened.put(reput.Message("orders", f"{text} {number} ".encode() * 20))


def write_as_rocketmq(store: Path, aside: Path) -> None:
    """Append records behind the log's end, and leave no trace but them."""
    rows = reput.table.read(store)
    end = rows["commitLogOffset"][-1].as_py() + rows["storeSize"][-1].as_py()
    begin = end - end % SEGMENT_SIZE
    theirs = WrittenLog(aside, SEGMENT_SIZE, begin)
    theirs.data += (store / "commitlog" / f"{begin:020d}").read_bytes()[: end - begin]
    for number in range(20):
        theirs.append(b"%d theirs" % number * 25, queue_offset=100 + number, store_timestamp=2**41 + number)
    theirs.save()
    shutil.copytree(aside / "commitlog", store / "commitlog", dirs_exist_ok=True)
