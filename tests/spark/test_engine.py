"""The store's bulk work on Spark: report and bytes equal those of the local engine, for every store and any split.

``REPUT_ENGINE_BYTES=4294967296`` makes the log of a thousand queues that long.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import reput
from golden_sets import CLEAN_SETS, newest_of_each, some_of
from reput.errors import ConfigError, DamagedStore
from reput.plugin_jobs import find_engine, rebuild_with
from reput.process.owner.offline_rebuild import rebuild as rebuild_here
from reput.settings import Settings, load_settings
from reput.store.check.check import check_store
from reput.store.disk.sealed_file import read_sealed
from reput.store.ext.consume_queue_ext_builder import ExtCursor
from reput.store.queue.consume_queue import UNIT
from reput.store.queue.consume_queue_builder import ConsumeQueueState
from written_log import WrittenLog

pytest.importorskip("pandas")
pytestmark = pytest.mark.spark

VIEWS = ("consume_queue", "index")
EXT_SET = "ext-4.9"
SETTINGS = Settings(max_hash_slot_num=200, max_index_num=41, mapped_file_size_consume_queue=400)


def nothing(*progress: Any) -> None:
    """Ignore progress."""


def files_below(target: Path) -> dict[str, bytes]:
    """Return the built files; index files in order instead of by their names, which are times."""
    found = {}
    ext = "reput/views/consume_queue_ext"
    for pattern in ("consumequeue/*/*/*", "consumequeue_ext/*/*/*", f"{ext}/addresses/*/*/*", f"{ext}/filters"):
        for path in sorted(target.glob(pattern)):
            found[str(path.relative_to(target))] = path.read_bytes()
    for number, path in enumerate(sorted(target.glob("index/*"))):
        found[f"index/{number}"] = path.read_bytes()
    return found


def build_both(
    store: Path, root: Path, settings: Settings, split_bytes: int | None = None, views: tuple[str, ...] = VIEWS
) -> tuple[Path, Path]:
    """Rebuild a store with both engines and return the two targets."""
    here, there = root / "here", root / "there"
    expected = list(rebuild_here(store, views, here, settings))
    engine = find_engine("spark")

    class Split:
        @staticmethod
        def rebuild(*arguments: Any) -> Any:
            return engine.rebuild(*arguments, split_bytes=split_bytes)

    found = list(rebuild_with(Split)(store, views, there, settings, on_progress=nothing))
    of_view = {row.view: row for row in expected}
    assert [(row.view, row.records, row.bytes) for row in found] == [
        (view, of_view[view].records, of_view[view].bytes) for view in views
    ]
    return here, there


@pytest.mark.processes
@pytest.mark.parametrize("name", some_of((name for name in CLEAN_SETS if name != EXT_SET), "batch-4.9", "basic-5.5"))
def test_the_bytes_of_a_rebuild_are_those_of_the_local_engine(
    spark: Any, name: str, golden_read_only: Callable[[str], Path], tmp_path: Path
):
    """For every store that RocketMQ closed, with files so small that each view has many."""
    store = golden_read_only(name) / "store"
    here, there = build_both(store, tmp_path, SETTINGS, 100_000)
    expected, found = files_below(here), files_below(there)
    assert found.keys() == expected.keys()
    assert [path for path in expected if found[path] != expected[path]] == []
    cursor = "reput/views/consume_queue/cursor"
    assert (there / cursor).stat().st_size == (here / cursor).stat().st_size


@pytest.mark.processes
def test_a_topic_that_rocketmq_made_again_is_its_new_life(spark: Any, tmp_path: Path):
    """Neither engine puts a record of the former generation into a queue, or an ext unit of one into its file."""
    log = WrittenLog(tmp_path / "store")
    for count in (9, 4):
        log.queue_offsets.clear()
        for number in range(count * 3 if count == 9 else count):
            log.append(queue_id=number % 3 if count == 9 else 0)
    born_at = log.offsets[27]
    here, there = build_both(log.save(), tmp_path, SETTINGS, 1000, ("consume_queue_ext", "consume_queue"))
    expected, found = files_below(here), files_below(there)
    assert found == expected
    table = read_sealed(there / "reput/views/consume_queue/cursor", ConsumeQueueState)
    assert table is not None
    assert {queue_id: end.end // 20 for queue_id, end in table.queues["orders"].items()} == {0: 4}
    first = UNIT.unpack_from(found[f"consumequeue/orders/0/{0:020d}"])
    assert first[0] == born_at


@pytest.mark.processes
def test_ext_files_have_the_bytes_of_the_local_engine(
    spark: Any, golden_read_only: Callable[[str], Path], broker_properties: Callable[[str], Path], tmp_path: Path
):
    """With the bits of the consumers' registered filters; the queues refer to them, in either order of the views."""
    store = golden_read_only(EXT_SET) / "store"
    settings = msgspec.structs.replace(
        load_settings(broker_properties(EXT_SET)).settings,
        mapped_file_size_consume_queue=400,
        mapped_file_size_consume_queue_ext=400,
    )
    here, there = build_both(store, tmp_path, settings, 20_000, ("consume_queue_ext", "consume_queue"))
    expected, found = files_below(here), files_below(there)
    assert any(path.startswith("consumequeue_ext/") for path in expected)
    assert found.keys() == expected.keys()
    assert [path for path in expected if found[path] != expected[path]] == []
    ext = Path("reput/views/consume_queue_ext")
    states = [read_sealed(target / ext / "cursor", ExtCursor) for target in (here, there)]
    assert states[0] == states[1]
    queues = read_sealed(there / "reput/views/consume_queue/cursor", ConsumeQueueState)
    assert queues is not None
    assert queues.ext_generation == (there / ext / "generation").read_text()


@pytest.mark.processes
@pytest.mark.slow
def test_a_log_over_a_thousand_queues_gives_the_bytes_of_the_local_engine(spark: Any, tmp_path: Path):
    """However long it is, and wherever it is split."""
    store, size = tmp_path / "store", int(os.environ.get("REPUT_ENGINE_BYTES", 4 << 20))
    with reput.open(
        store, dispatchers=[], mode="inline", mapped_file_size_commit_log=max(size // 4, 1 << 20)
    ) as opened:
        count = 0
        while count < 1000 or opened.appended < size:
            opened.put_batch(
                [
                    reput.Message(f"t{number % 100}", bytes(3000), keys=[f"k{number}"], queue_id=number // 100 % 10)
                    for number in range(count, count + 100)
                ]
            )
            count += 100
    settings = Settings(max_hash_slot_num=20_000, max_index_num=50_000, mapped_file_size_consume_queue=20_000)
    here, there = build_both(store, tmp_path, settings, None if size > 256 << 20 else size // 7)
    assert len(list(here.glob("consumequeue/*/*"))) == 1000
    expected, found = files_below(here), files_below(there)
    assert found.keys() == expected.keys()
    assert [path for path in expected if found[path] != expected[path]] == []
    assert msgspec.to_builtins(find_engine("spark").check_store(store, Settings(), nothing)) == msgspec.to_builtins(
        check_store(store, Settings())
    )


@pytest.mark.parametrize("name", [*newest_of_each(CLEAN_SETS), "damaged-4.9/clean-before", "crash-5.3/torn-before"])
def test_the_report_of_a_check_is_that_of_the_local_engine(
    spark: Any, name: str, golden_read_only: Callable[[str], Path]
):
    """Including damage, torn ends and remains of older histories."""
    head, _, part = name.partition("/")
    store = golden_read_only(head) / part / "store"
    expected = check_store(store, Settings())
    found = find_engine("spark").check_store(store, Settings(), nothing, split_bytes=100_000)
    assert msgspec.to_builtins(found) == msgspec.to_builtins(expected)


def test_damage_in_the_middle_is_found_where_it_is(spark: Any, tmp_path: Path):
    """In whichever range it lies, and although the later ranges are undamaged."""
    log = WrittenLog(tmp_path)
    for number in range(300):
        log.append(b"%d" % number * 30, topic=b"t%d" % (number % 3))
    log.data[log.offsets[100] + 100] ^= 0xFF
    log.data[log.offsets[201] + 4] ^= 0xFF
    store = log.save()
    expected = check_store(store, Settings())
    assert len(expected.damage) == 2
    for split_bytes in (9000, 60_000):
        found = find_engine("spark").check_store(store, Settings(), nothing, split_bytes=split_bytes)
        assert msgspec.to_builtins(found) == msgspec.to_builtins(expected)


def test_a_damaged_log_is_not_rebuilt_from(spark: Any, tmp_path: Path):
    """Unless the damage has been accepted; the error has its position."""
    log = WrittenLog(tmp_path / "store")
    for number in range(60):
        log.append(b"%d" % number * 30)
    log.data[log.offsets[7] + 4] ^= 0xFF
    store = log.save()
    rebuild = rebuild_with(find_engine("spark"))
    with pytest.raises(DamagedStore, match=f"commit_log_offset={log.offsets[7]}"):
        list(rebuild(store, VIEWS, tmp_path / "target", SETTINGS, on_progress=nothing))
    assert not (tmp_path / "target" / "reput" / "views").exists()


def test_a_view_that_spark_does_not_build_is_refused(tmp_path: Path):
    """By name, with the possible ones; so is an unknown engine."""
    rebuild = rebuild_with(find_engine("spark"))
    with pytest.raises(ConfigError, match="view=spark_export built=consume_queue_ext,consume_queue,index"):
        list(rebuild(tmp_path / "a", ["spark_export"], tmp_path / "b", Settings(), on_progress=nothing))
    with pytest.raises(ConfigError, match="engine=flink installed=local,spark"):
        find_engine("flink")
