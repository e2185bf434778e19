"""The checkpoint of a stream and the log that it continues with: retention, a later id, another store."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import reput
from pyspark_reput.read_options import parse_options
from pyspark_reput.stream_position import StreamPositions
from reput.errors import StoreError
from reput.store.state.epochs import read_epochs
from reput.store.state.identity import read_identity
from reput.table import LogTable
from written_log import START_MS, WrittenLog


def positions(store: Path, given: str | None = None) -> StreamPositions:
    """Return the positions of a query that starts now."""
    return StreamPositions(LogTable(store), given)


def position(store: Path, offset: dict[str, Any], given: str | None = None) -> int:
    """Return the position from which a query that starts now continues."""
    return positions(store, given).position(offset, LogTable(store).find_end())


def written(store: Path, count: int, letter: bytes = b"a", begin: int = 0) -> WrittenLog:
    log = WrittenLog(store, 4096, begin=begin)
    for number in range(count):
        log.append(letter * 200 + b"%d" % number)
    log.save()
    return log


@pytest.mark.parametrize("version", ["4.9", "5.3"])
@pytest.mark.parametrize("adopted", [False, True], ids=["never opened", "opened by reput"])
def test_a_checkpoint_outlives_a_brokers_retention(golden: Callable[[str], Path], version: str, adopted: bool):
    """The oldest segment is gone; the rest is unchanged, whatever the store's current id."""
    store = golden(f"basic-{version}") / "store"
    end = LogTable(store).find_end()
    checkpoint = positions(store).offset(end)
    shutil.rmtree(store / "commitlog")
    shutil.copytree(golden(f"aged-{version}") / "head-before" / "store" / "commitlog", store / "commitlog")
    if adopted:
        with reput.open(store, mode="inline", dispatchers=[]) as opened:
            opened.put(reput.Message("orders", b"by reput"))
    again = positions(store)
    assert again.position(checkpoint, LogTable(store).find_end()) == end
    later = again.offset(LogTable(store).find_end())
    identity = read_identity(store)
    assert later["store"] == (checkpoint["store"] if identity is None else identity.store_id)
    assert position(store, later) == LogTable(store).find_end()


def test_a_checkpoint_of_an_older_reput_goes_on_where_its_first_record_is_there(tmp_path: Path):
    """Its id is derived from that record, and it has no marks."""
    log = written(tmp_path, 60)
    older = {name: value for name, value in positions(tmp_path).offset(log.end).items() if name != "marks"}
    assert position(tmp_path, older) == log.end
    with reput.open(tmp_path, mode="inline", dispatchers=[]):
        pass
    assert position(tmp_path, older) == log.end
    min(sorted((tmp_path / "commitlog").iterdir())).unlink()
    with pytest.raises(StoreError, match=r"the checkpoint belongs to another store: .* marks_held=0") as raised:
        position(tmp_path, older)
    assert f"storeId={older['store']}" in raised.value.advice
    assert position(tmp_path, older, older["store"]) == log.end


def test_a_checkpoint_of_another_store_names_both(tmp_path: Path):
    """The error also says what to do if they are the same."""
    one, other = written(tmp_path / "one", 60), written(tmp_path / "other", 60, b"b")
    checkpoint = positions(one.store).offset(one.end)
    with pytest.raises(StoreError) as raised:
        position(other.store, checkpoint)
    assert f"checkpoint_store_id={checkpoint['store']} checkpoint_offset={one.end} " in str(raised.value)
    assert f"store={other.store} store_id=none" in str(raised.value)
    assert "marks_held=0" in str(raised.value)
    assert f"storeId={checkpoint['store']}" in raised.value.advice
    with pytest.raises(StoreError, match="the log was cut below the checkpoint: cut_at=0 "):
        position(other.store, checkpoint, checkpoint["store"])


def test_a_query_that_runs_goes_on_when_retention_overtakes_it(tmp_path: Path):
    """The records it has read are gone, with all its marks; it is still the same directory."""
    log = written(tmp_path, 60)
    query = positions(tmp_path)
    at = query.position(query.offset(log.offsets[5]), log.end)
    for path in sorted((tmp_path / "commitlog").iterdir())[:3]:
        path.unlink()
    assert query.position(query.offset(at), log.end) == at
    with pytest.raises(StoreError, match="the checkpoint belongs to another store"):
        position(tmp_path, query.offset(at))


def test_what_retention_took_is_no_cut(tmp_path: Path):
    """An epoch with an unknown begin contradicts nothing that the marks show."""
    log = written(tmp_path, 60)
    with reput.open(tmp_path, mode="inline", dispatchers=[]) as opened:
        end = opened.appended
    checkpoint = positions(tmp_path).offset(end)
    for path in sorted((tmp_path / "commitlog").iterdir())[:2]:
        path.unlink()
    minimum = LogTable(tmp_path).offset_min
    epochs = read_epochs(tmp_path, checkpoint["store"]).begin(minimum, START_MS, located=False)
    (tmp_path / "reput" / "epochs").write_bytes(epochs.seal())
    assert position(tmp_path, checkpoint) == end
    behind = {**checkpoint, "offset": log.offsets[3]}
    assert position(tmp_path, behind) == log.offsets[3]


@pytest.mark.parametrize("read_on", [True, False], ids=["appended to", "written anew"])
def test_an_epoch_of_another_programs_records_parts_where_the_marks_do(tmp_path: Path, read_on: bool):
    """It begins where reput's own records end; the query may have read the others, and the log may still have them."""
    written(tmp_path, 30)
    with reput.open(tmp_path, mode="inline", dispatchers=[]) as opened:
        own_end = opened.appended
    log = written(tmp_path, 60)
    checkpoint = positions(tmp_path).offset(log.end)
    kept = checkpoint["marks"][-2]
    if not read_on:
        shutil.rmtree(tmp_path / "commitlog")
        anew = written(tmp_path, log.offsets.index(kept[0]) + 1)
        for number in range(40):
            anew.append(b"b" * 200 + b"%d" % number)
        anew.save()
    epochs = read_epochs(tmp_path, checkpoint["store"]).begin(own_end, START_MS)
    (tmp_path / "reput" / "epochs").write_bytes(epochs.seal())
    if read_on:
        assert position(tmp_path, checkpoint) == log.end
        return
    with pytest.raises(StoreError, match=f"the log was cut below the checkpoint: cut_at={kept[0] + kept[1]} "):
        position(tmp_path, checkpoint)


def test_a_log_that_was_written_anew_is_a_cut_behind_the_last_common_record(tmp_path: Path):
    """The error has the position, never below the log's minimum."""
    log = written(tmp_path / "one", 60)
    query = positions(log.store)
    checkpoint = query.offset(log.end)
    shutil.rmtree(log.store / "commitlog")
    anew = written(log.store, 30)
    for number in range(40):
        anew.append(b"b" * 200 + b"%d" % number)
    anew.save()
    last = max(offset for offset in anew.offsets[:30] if offset // 4096 < anew.offsets[30] // 4096)
    following = anew.offsets[anew.offsets.index(last) + 1]
    with pytest.raises(StoreError, match="the log was cut below the checkpoint: cut_at=") as raised:
        position(log.store, checkpoint, checkpoint["store"])
    cut_at = int(str(raised.value).partition("cut_at=")[2].split()[0])
    assert last < cut_at <= following


def test_a_log_that_ends_before_the_checkpoint_is_not_waited_for_in_silence(tmp_path: Path):
    """Its next records would not be read."""
    log = written(tmp_path, 60)
    checkpoint = positions(tmp_path).offset(log.end)
    shutil.rmtree(tmp_path / "commitlog")
    shorter = written(tmp_path, 40)
    with pytest.raises(StoreError, match=f"log_end={shorter.end} checkpoint_offset={log.end}"):
        position(tmp_path, checkpoint)


def test_the_id_can_be_given_as_an_option():
    """Like Spark's options."""
    assert parse_options({"path": "/s", "STOREID": "orders"}).store_id == "orders"
    assert parse_options({"path": "/s"}).store_id is None
