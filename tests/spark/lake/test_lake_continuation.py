"""A lake and the log that it continues with: retention, cuts, other writers and other stores, in any order.

The work of Spark's workers and driver is done in this process. The fault matrix covers the orders of these events.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

from deltalake import DeltaTable

import reput
from reput.cli import main
from reput.errors import StoreError
from reput.store.disk.sealed_file import seal
from reput.store.recovery.repair import cut
from reput.store.state.epochs import read_epochs
from reput.store.state.identity import StoreIdentity, read_identity
from reput_plugins.spark_export.export_job import export
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.lake_marks import committed_marks
from reput_plugins.spark_export.lake_sources import lake_sources
from reput_plugins.spark_export.lakes.opening import open_table
from small_store import overwrite
from spark.exporting import without_spark
from spark.lakes import forget_marks, lake_rows, offsets_in
from written_log import START_MS, WrittenLog

STORE_ID = "ab" * 16


@pytest.fixture(autouse=True)
def exported_here() -> Iterator[None]:
    """Make exports do their work in this process."""
    with without_spark():
        yield


def name_store(store: Path, store_id: str = STORE_ID) -> None:
    """Give a store an id, like its first opening by reput."""
    (store / "reput").mkdir(exist_ok=True)
    (store / "reput" / "store.json").write_bytes(seal(StoreIdentity(1, store_id, {})))


def written(store: Path, bodies: list[bytes], segment_size: int = 4096, **fields: Any) -> WrittenLog:
    """Return a log with these bodies."""
    log = WrittenLog(store, segment_size)
    for body in bodies:
        log.append(body, **fields)
    log.save()
    return log


def bodies(count: int, letter: bytes = b"a") -> list[bytes]:
    return [letter * 200 + b"%d" % number for number in range(count)]


def trim(store: Path, count: int) -> int:
    """Remove the oldest segments; return the log's new beginning."""
    paths = sorted((store / "commitlog").iterdir())
    for path in paths[:count]:
        path.unlink()
    return int(paths[count].name)


def bodies_in(lake: Path) -> list[bytes]:
    found: list[bytes] = lake_rows(lake)["body"].to_pylist()
    return found


def put_all(store: Path, texts: list[bytes]) -> list[int]:
    """Put messages with reput, and return their positions."""
    with reput.open(store, mode="inline", mapped_file_size_commit_log=4096, dispatchers=[]) as opened:
        return [opened.put(reput.Message("orders", text)).commit_log_offset for text in texts]


@pytest.mark.parametrize("between", ["nothing", "adopted", "named before", "unnamed", "old lake", "storeId", "no meta"])
@pytest.mark.parametrize("version", [pytest.param("4.9", marks=pytest.mark.long), "5.3"])
def test_a_brokers_retention_doubles_nothing(golden: Callable[[str], Path], tmp_path: Path, version: str, between: str):
    """A broker's directory is exported, the broker continues and removes its oldest segment, then a second export."""
    aged = golden(f"aged-{version}") / "head-before" / "store"
    store, lake = golden(f"basic-{version}") / "store", tmp_path / "lake"
    given = {"store_id": "orders-broker"} if between == "storeId" else {}
    if between in ("named before", "unnamed"):
        name_store(store)
    first = export(store, lake, **given)
    rows = lake_rows(lake)
    assert first.records == rows.num_rows > 800
    if between in ("old lake", "no meta"):
        forget_marks(lake)
    shutil.rmtree(store / "commitlog")
    shutil.copytree(aged / "commitlog", store / "commitlog")
    if between == "adopted":
        put_at = put_all(store, [b"by reput"])
    if between == "unnamed":
        shutil.rmtree(store / "reput")
    for _ in range(2):
        again = export(store, lake, **given)
        if between != "adopted":
            assert again.records == 0
    found = lake_rows(lake)
    if between == "adopted":
        assert found["commitLogOffset"].to_pylist() == [*rows["commitLogOffset"].to_pylist(), *put_at]
        identity = read_identity(store)
        assert identity is not None
        assert [cursor.store_id for cursor in lake_sources(open_table(LakeLocation.of(lake)), "export")] == [
            identity.store_id
        ]
    else:
        assert found.equals(rows)


def test_a_lake_of_one_topic_goes_on_by_the_marks_of_all(tmp_path: Path):
    """The marks belong to the log, not to the rows."""
    store, lake = tmp_path / "store", tmp_path / "lake"
    log = written(store, bodies(20))
    log.append(b"the only one", topic=b"rare")
    for body in bodies(40, b"b"):
        log.append(body)
    log.save()
    assert export(store, lake, topics=["rare"]).records == 1
    trim(store, 3)
    log.append(b"another", topic=b"rare")
    (last,) = sorted((store / "commitlog").iterdir())[-1:]
    begin = int(last.name)
    last.write_bytes(bytes(log.data[begin:]).ljust(4096, b"\0"))
    assert export(store, lake, topics=["rare"]).records == 1
    assert bodies_in(lake) == [b"the only one", b"another"]


@pytest.mark.parametrize("old", [False, True], ids=["marks", "rows"])
def test_another_store_is_refused_with_both_names(golden: Callable[[str], Path], tmp_path: Path, old: bool):
    """The error says what to do if both are the same store."""
    store, lake = golden("basic-5.3") / "store", tmp_path / "lake"
    export(store, lake)
    if old:
        forget_marks(lake)
    other = golden("basic-4.9") / "store"
    before = lake_rows(lake)
    (known,) = lake_sources(open_table(LakeLocation.of(lake)), "export")
    with pytest.raises(StoreError) as raised:
        export(other, lake)
    assert f"the lake holds another store: lake={lake}" in str(raised.value)
    assert f"lake_store_id={known.store_id} " in str(raised.value)
    assert f"store={other} store_id=none" in str(raised.value)
    assert "marks_held=0" in str(raised.value)
    assert f"--store-id {known.store_id}" in raised.value.advice
    assert "give this one a name with --store-id NAME" in raised.value.advice
    assert lake_rows(lake).equals(before)


def test_a_store_whose_marks_are_all_gone_is_named_by_the_operator(tmp_path: Path):
    """Retention removed everything that the lake was made from: only the operator knows that it is the same store."""
    store, lake = tmp_path / "store", tmp_path / "lake"
    log = written(store, bodies(30))
    export(store, lake)
    (known,) = lake_sources(open_table(LakeLocation.of(lake)), "export")
    kept = bodies_in(lake)
    count = len(list((store / "commitlog").iterdir()))
    for body in bodies(30, b"b"):
        log.append(body)
    log.save()
    minimum = trim(store, count)
    with pytest.raises(StoreError, match=r"may hold another store, .* marks_held=0 marks_refuted=0") as raised:
        export(store, lake)
    assert f"confirm it with --store-id {known.store_id}" in raised.value.advice
    export(store, lake, store_id=known.store_id, fail_on_data_loss=False)
    later = [body for body, at in zip(bodies(30, b"b"), log.offsets[30:], strict=True) if at >= minimum]
    assert bodies_in(lake) == [*kept, *later]
    assert export(store, lake).records == 0


def test_several_stores_keep_to_their_lakes(tmp_path: Path):
    """Each continues its own lake after retention, and is refused by the other's."""
    for name in ("one", "two"):
        written(tmp_path / name, bodies(40, name[:1].encode()), born_timestamp=ord(name[0]))
        export(tmp_path / name, tmp_path / f"lake-{name}")
        trim(tmp_path / name, 1)
    for name, other in (("one", "two"), ("two", "one")):
        assert export(tmp_path / name, tmp_path / f"lake-{name}").records == 0
        with pytest.raises(StoreError, match="the lake holds another store"):
            export(tmp_path / name, tmp_path / f"lake-{other}")
        assert bodies_in(tmp_path / f"lake-{name}") == bodies(40, name[:1].encode())


def test_a_cut_after_retention_takes_no_more_than_was_cut(tmp_path: Path):
    """Records that retention removed from the log stay in the lake; so does everything below the cut."""
    store, lake = tmp_path / "store", tmp_path / "lake"
    offsets = put_all(store, bodies(60))
    export(store, lake)
    minimum = trim(store, 2)
    cut(store, offsets[45])
    assert export(store, lake).records == 0
    assert offsets_in(lake) == offsets[:45]
    later = put_all(store, bodies(5, b"b"))
    assert export(store, lake).records == 5
    assert offsets_in(lake) == [*offsets[:45], *later]
    assert minimum > offsets[0]


@pytest.mark.parametrize("overtaken", [True, False], ids=["beyond our end", "below our end"])
def test_a_rocketmq_that_ran_past_retention_empties_no_lake(tmp_path: Path, overtaken: bool):
    """Later records do not contradict what retention removed."""
    store, lake = tmp_path / "store", tmp_path / "lake"
    offsets = put_all(store, bodies(60))
    export(store, lake)
    end = max(int(path.name) for path in (store / "commitlog").iterdir())
    minimum = end + 3 * 4096 if overtaken else end - 4096
    shutil.rmtree(store / "commitlog")
    theirs = WrittenLog(store, 4096, begin=minimum)
    for number in range(40):
        theirs.append(b"theirs %d" % number * 30, queue_offset=60 + number, store_timestamp=2**41 + number)
    theirs.save()
    put_all(store, [])
    if overtaken:
        export(store, lake, fail_on_data_loss=False)
        assert offsets_in(lake) == [*offsets, *theirs.offsets]
        return
    taken = sum(offset >= minimum for offset in offsets)
    with pytest.raises(StoreError, match=f"cut_at={minimum} .* rows_to_take_out={taken} rows_to_keep={60 - taken}"):
        export(store, lake)
    assert offsets_in(lake) == offsets
    export(store, lake, accept_truncation=True)
    assert offsets_in(lake) == [*offsets[: 60 - taken], *theirs.offsets]


def test_a_history_that_the_epochs_cannot_locate_is_located_by_the_marks(tmp_path: Path):
    """RocketMQ appended to our log and removed all that reput knew the log by; the lake still recognises it."""
    store, lake = tmp_path / "store", tmp_path / "lake"
    put_all(store, bodies(30))
    offsets = put_all(store, bodies(30, b"b"))
    export(store, lake)
    kept = offsets_in(lake)
    epochs = read_epochs(store, STORE_ID)
    minimum = trim(store, 2)
    (store / "reput" / "epochs").write_bytes(epochs.begin(minimum, START_MS, located=False).seal())
    assert export(store, lake).records == 0
    assert offsets_in(lake) == kept
    assert offsets[-1] == kept[-1]


def test_what_another_program_appended_is_known_by_the_marks(tmp_path: Path):
    """The lake took it in before reput opened the store again and began an epoch where its own records end."""
    store, lake = tmp_path / "store", tmp_path / "lake"
    written(store, bodies(40))
    put_all(store, [])
    log = written(store, [*bodies(40), *bodies(30, b"theirs ")])
    export(store, lake)
    put_all(store, [])
    latest = read_epochs(store, STORE_ID).history[-1]
    assert latest.located
    assert latest.start_offset <= log.offsets[40]
    assert export(store, lake).records == 0
    assert offsets_in(lake) == log.offsets


def diverging(tmp_path: Path) -> tuple[Path, Path, WrittenLog, WrittenLog]:
    """Return store and lake, whose log was rewritten from record 30 of 60 on, the old log and the new one."""
    store, lake = tmp_path / "store", tmp_path / "lake"
    old = written(store, bodies(60))
    export(store, lake)
    shutil.rmtree(store / "commitlog")
    return store, lake, old, written(store, [*bodies(30), *bodies(40, b"b")])


def test_a_log_without_a_name_that_was_written_anew_is_refused(tmp_path: Path):
    """Some marks hold and some are refuted: it may be a diverged copy. The operator decides."""
    store, lake, old, new = diverging(tmp_path)
    (known,) = lake_sources(open_table(LakeLocation.of(lake)), "export")
    with pytest.raises(StoreError, match=r"the lake holds another store: .* marks_held=[1-9]"):
        export(store, lake)
    assert offsets_in(lake) == old.offsets
    export(store, lake, store_id=known.store_id)
    assert bodies_in(lake) == [*bodies(30), *bodies(40, b"b")]
    assert offsets_in(lake) == new.offsets


def test_a_named_log_that_was_written_anew_loses_the_tail_behind_the_last_common_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """It is the same store, and the rows that it still has come again."""
    store, lake, _, _ = diverging(tmp_path)
    (known,) = lake_sources(open_table(LakeLocation.of(lake)), "export")
    name_store(store, known.store_id)
    export(store, lake)
    assert bodies_in(lake) == [*bodies(30), *bodies(40, b"b")]
    assert "rows_to_take_out=" in caplog.text


def test_where_nothing_is_common_the_operator_is_asked(tmp_path: Path):
    """The error has the numbers of rows first; rows below the log's minimum stay even then."""
    store, lake = tmp_path / "store", tmp_path / "lake"
    old = written(store, bodies(60))
    name_store(store)
    export(store, lake)
    shutil.rmtree(store / "commitlog")
    new = WrittenLog(store, 4096, begin=8192)
    for body in bodies(60, b"b"):
        new.append(body)
    new.save()
    taken = sum(offset >= 8192 for offset in old.offsets)
    with pytest.raises(StoreError) as raised:
        export(store, lake)
    assert f"cut_at=8192 lake_until={old.end} " in str(raised.value)
    assert f"rows_to_take_out={taken} rows_to_keep={60 - taken} " in str(raised.value)
    assert "--accept-truncation" in raised.value.advice
    assert offsets_in(lake) == old.offsets
    export(store, lake, accept_truncation=True)
    assert bodies_in(lake) == [*bodies(60 - taken), *bodies(60, b"b")]


def test_a_log_that_ends_before_the_lake_is_not_waited_for_in_silence(tmp_path: Path):
    """It is an older copy, or the log was cut by someone else: its next records would not be exported."""
    store, lake = tmp_path / "store", tmp_path / "lake"
    old = written(store, bodies(60))
    export(store, lake)
    shutil.rmtree(store / "commitlog")
    shorter = written(store, bodies(40))
    with pytest.raises(
        StoreError, match=f"log_end={shorter.end} lake_until={old.end} .* rows_to_take_out=20 rows_to_keep=40"
    ):
        export(store, lake)
    assert offsets_in(lake) == old.offsets
    export(store, lake, accept_truncation=True)
    assert offsets_in(lake) == shorter.offsets


def test_a_cut_within_the_only_segment_leaves_a_mark(tmp_path: Path):
    """A log without an id is known by its marks; the last remaining record becomes one."""
    store, lake = tmp_path / "store", tmp_path / "lake"
    written(store, bodies(30), 1 << 20)
    export(store, lake)
    log = written(store, bodies(20), 1 << 20)
    (known,) = lake_sources(open_table(LakeLocation.of(lake)), "export")
    export(store, lake, store_id=known.store_id, accept_truncation=True)
    assert bodies_in(lake) == bodies(20)
    (mark,) = committed_marks(open_table(LakeLocation.of(lake)), known.store_id, "export") or []
    assert mark.commit_log_offset == log.offsets[-1]
    written(store, [*bodies(20), *bodies(5, b"b")], 1 << 20)
    assert export(store, lake).records == 5
    assert bodies_in(lake) == [*bodies(20), *bodies(5, b"b")]


def test_the_refusal_gives_the_command_that_accepts_a_truncation(tmp_path: Path):
    """With the export's name and topics, so that it works when pasted, even for the table of a dispatcher."""
    store, lake = tmp_path / "store", tmp_path / "lake"
    written(store, bodies(60))
    export(store, lake, name="mine", topics=["orders"])
    shutil.rmtree(store / "commitlog")
    written(store, bodies(40))
    with pytest.raises(StoreError) as raised:
        export(store, lake, name="mine", topics=["orders"])
    command = raised.value.advice.partition("continue with the log: ")[2]
    assert command == f"reput export {store} {lake} --name mine --topic orders --accept-truncation"
    assert main(shlex.split(command)[1:]) == 0
    assert bodies_in(lake) == bodies(40)


def test_a_damaged_header_under_the_last_mark_takes_no_rows(tmp_path: Path):
    """The log continues after it, so there is no other history there."""
    store, lake = tmp_path / "store", tmp_path / "lake"
    old = written(store, bodies(60))
    name_store(store)
    export(store, lake)
    log = written(store, [*bodies(60), *bodies(5, b"b")])
    overwrite(store, old.offsets[-1] + 4, b"\0\0")
    assert export(store, lake).records == 5
    assert offsets_in(lake) == log.offsets


def test_a_damaged_header_at_the_end_of_the_log_has_the_operator_asked(tmp_path: Path):
    """The log ends there, and the lake's rows of it would have to be removed."""
    store, lake = tmp_path / "store", tmp_path / "lake"
    log = written(store, bodies(60))
    name_store(store)
    export(store, lake)
    overwrite(store, log.offsets[-1] + 4, b"\0\0")
    with pytest.raises(StoreError, match=f"log_end={log.offsets[-1]} .* rows_to_take_out=1 rows_to_keep=59"):
        export(store, lake)
    assert offsets_in(lake) == log.offsets


def test_epochs_that_begin_anew_lead_to_no_old_place(tmp_path: Path):
    """The file of the epochs was lost: numbers are reused, so the lake's positions by them are invalid."""
    store, lake = tmp_path / "store", tmp_path / "lake"
    offsets: list[int] = []
    for number in range(4):
        offsets += put_all(store, bodies(10, b"%d" % number))
        epochs = read_epochs(store, STORE_ID)
        (store / "reput" / "epochs").write_bytes(epochs.begin(epochs.clean_end or 0, START_MS).seal())
        export(store, lake)
    (store / "reput" / "epochs").unlink()
    for number in range(5):
        offsets += put_all(store, bodies(10, b"x%d" % number))
        export(store, lake)
        assert offsets_in(lake) == offsets
        epochs = read_epochs(store, STORE_ID)
        (store / "reput" / "epochs").write_bytes(epochs.begin(epochs.clean_end or 0, START_MS).seal())


def test_a_lake_whose_transactions_were_put_together_is_still_known(tmp_path: Path):
    """The table's checkpoint names the stores in it; the rows are the marks."""
    from deltalake import DeltaTable

    store, lake = tmp_path / "store", tmp_path / "lake"
    log = written(store, bodies(60))
    export(store, lake)
    DeltaTable(lake).create_checkpoint()
    for path in (lake / "_delta_log").glob("*.json"):
        if int(path.stem) < DeltaTable(lake).version():
            path.unlink()
    forget_marks(lake)
    trim(store, 2)
    assert export(store, lake).records == 0
    assert offsets_in(lake) == log.offsets


@pytest.mark.parametrize("by_time", [False, True], ids=["version", "time"])
def test_a_lake_that_was_restored_is_refused_until_its_rows_are_back(tmp_path: Path, by_time: bool):
    """Delta keeps the recorded end in a restore, so an export would go on behind rows that are gone."""
    store, lake = tmp_path / "store", tmp_path / "lake"
    log = written(store, bodies(5))
    export(store, lake)
    kept = DeltaTable(lake).version()
    kept_until = datetime.fromtimestamp(DeltaTable(lake).history(1)[0]["timestamp"] / 1000 + 0.001, UTC)
    log.append(b"taken away")
    log.save()
    export(store, lake)
    whole = DeltaTable(lake).version()
    if by_time:
        # The library takes the times of the files of the table's log.
        for number, path in enumerate(sorted((lake / "_delta_log").glob("*.json"))):
            at = kept_until.timestamp() - 1 if number <= kept else kept_until.timestamp() + 9
            os.utime(path, (at, at))
    DeltaTable(lake).restore(kept_until if by_time else kept)
    assert bodies_in(lake) == bodies(5)
    log.append(b"later")
    log.save()
    for _ in range(2):
        with pytest.raises(StoreError, match=f"restored_version={kept} lacks_version=") as raised:
            export(store, lake)
        assert f"Restore its version {whole}, " in raised.value.advice
        assert bodies_in(lake) == bodies(5)
    DeltaTable(lake).restore(whole)
    assert export(store, lake).records == 1
    assert bodies_in(lake) == [*bodies(5), b"taken away", b"later"]


def test_a_lake_that_was_restored_to_the_store_s_newest_rows_goes_on(tmp_path: Path):
    """Only what came after them was taken back: a merge of files, or the rows of another store."""
    lake = tmp_path / "lake"
    logs = {name: written(tmp_path / name, bodies(3, name.encode()[:1])) for name in ("one", "two")}
    for name in logs:
        name_store(tmp_path / name, name)
        export(tmp_path / name, lake)
    commits = {entry["reput"]["store"]: entry["version"] for entry in DeltaTable(lake).history() if "reput" in entry}
    first = commits["one"]
    DeltaTable(lake).restore(first)
    for log in logs.values():
        log.append(b"later")
        log.save()
    assert export(tmp_path / "one", lake).records == 1
    with pytest.raises(StoreError, match="somebody restored the lake"):
        export(tmp_path / "two", lake)
