"""Several stores in one lake: distinguished by the column ``store``, and each removable separately.

The work of Spark's workers and driver is done in this process.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

from deltalake import DeltaTable

from reput.errors import ConfigError, StoreError
from reput.store.disk.sealed_file import seal
from reput.store.state.epochs import read_epochs
from reput.store.state.identity import StoreIdentity
from reput_plugins.spark_export.export_job import export
from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.maintenance import Maintenance
from spark.exporting import without_spark
from spark.lakes import forget_marks, lake_rows
from written_log import START_MS, WrittenLog

ONE, TWO = "1a" * 16, "2b" * 16


@pytest.fixture(autouse=True)
def exported_here() -> Iterator[None]:
    """Make exports do their work in this process."""
    with without_spark():
        yield


def written(store: Path, letter: str, count: int = 30, store_id: str | None = None) -> WrittenLog:
    """Return a log whose bodies have this letter; with *store_id* like one written by reput."""
    log = WrittenLog(store)
    append(log, letter, count)
    if store_id is not None:
        (store / "reput").mkdir()
        (store / "reput" / "store.json").write_bytes(seal(StoreIdentity(1, store_id, {})))
    return log


def append(log: WrittenLog, letter: str, count: int) -> None:
    """Append records and write the log, without the bytes that followed its end."""
    shutil.rmtree(log.store / "commitlog", ignore_errors=True)
    for _ in range(count):
        log.append(letter.encode() * 100, born_timestamp=ord(letter))
    log.save()


def rows_by_store(lake: Path) -> dict[Any, int]:
    """Return the number of rows per store."""
    counted = lake_rows(lake).group_by("store").aggregate([([], "count_all")]).to_pylist()
    return {row["store"]: row["count_all"] for row in counted}


def bodies_of(lake: Path, store: str) -> list[bytes]:
    """Return the bodies of one store's rows, in order."""
    rows = lake_rows(lake).to_pylist()
    return [row["body"] for row in rows if row["store"] == store]


def files_at(lake: Path, version: int) -> list[str]:
    """Return the files of an earlier version of the table."""
    return [unquote(uri) for uri in DeltaTable(lake, version=version).file_uris()]


def make_old(lake: Path) -> None:
    """Leave the lake as if a version without the column had created it."""
    (path,) = (lake / "_delta_log").glob(f"{0:020d}.json")
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            schema["fields"] = [field for field in schema["fields"] if field["name"] != "store"]
            action["metaData"]["schemaString"] = json.dumps(schema)
            action["metaData"]["configuration"]["reput.format"] = "1"
    path.write_text("".join(json.dumps(action) + "\n" for action in actions))


def test_two_stores_in_one_lake_are_told_apart(tmp_path: Path):
    """Each continues where it ended, even after their files were merged."""
    lake = tmp_path / "lake"
    one, two = written(tmp_path / "one", "a", 30, ONE), written(tmp_path / "two", "b", 20, TWO)
    for _ in range(2):
        assert export(one.store, lake).records in (30, 0)
        assert export(two.store, lake).records in (20, 0)
    append(two, "c", 7)
    Maintenance(LakeLocation.of(lake), interval_ms=1, vacuum_hours=0).run(lambda: None)
    assert export(one.store, lake).records == 0
    assert export(two.store, lake).records == 7
    assert rows_by_store(lake) == {ONE: 30, TWO: 27}
    assert bodies_of(lake, TWO) == [b"b" * 100] * 20 + [b"c" * 100] * 7


def test_an_export_takes_nothing_out_of_the_folder(tmp_path: Path):
    """Earlier versions of the table stay readable, and other files beside it stay, however old both are."""
    lake = tmp_path / "lake"
    log = written(tmp_path / "store", "a", 30, ONE)
    note = lake / "notes.ipynb"
    for letter in "bcd":
        export(log.store, lake)
        append(log, letter, 5)
        note.write_text("{}")
        for path in lake.rglob("*"):
            if path.suffix == ".json":
                path.write_text(re.sub(r'"deletionTimestamp":\d+', '"deletionTimestamp":1', path.read_text()))
            os.utime(path, (1, 1))
    assert export(log.store, lake).records == 5
    assert note.exists()
    names = {file for version in range(DeltaTable(lake).version() + 1) for file in files_at(lake, version)}
    assert len(names) > len(DeltaTable(lake).file_uris())
    assert all(Path(name).exists() for name in names)


def test_what_one_store_lost_leaves_the_rows_of_the_other(tmp_path: Path):
    """A cut of its log removes its own rows."""
    lake = tmp_path / "lake"
    one, two = written(tmp_path / "one", "a", 30, ONE), written(tmp_path / "two", "b", 30, TWO)
    export(one.store, lake)
    export(two.store, lake)
    cut = two.offsets[12]
    (two.store / "reput" / "epochs").write_bytes(read_epochs(two.store, TWO).begin(cut, START_MS).seal())
    two.data, two.offsets = two.data[:cut], two.offsets[:12]
    append(two, "c", 5)
    assert export(two.store, lake).records == 5
    assert rows_by_store(lake) == {ONE: 30, TWO: 17}
    assert bodies_of(lake, TWO) == [b"b" * 100] * 12 + [b"c" * 100] * 5


def test_a_store_without_a_name_is_given_one_beside_another(tmp_path: Path):
    """A broker's log has no id of its own; its rows have the name that the operator gives it, from then on."""
    lake = tmp_path / "lake"
    export(written(tmp_path / "one", "a").store, lake, store_id="broker-a")
    two = written(tmp_path / "two", "b")
    with pytest.raises(StoreError, match=r"the lake holds another store: .* lake_store_id=broker-a ") as raised:
        export(two.store, lake)
    assert "give this one a name with --store-id NAME" in raised.value.advice
    export(two.store, lake, store_id="broker-b")
    append(two, "c", 4)
    assert export(two.store, lake).records == 4
    assert rows_by_store(lake) == {"broker-a": 30, "broker-b": 34}
    with pytest.raises(ConfigError, match="a store's id has at most 64 letters"):
        export(two.store, lake, store_id="broker 'b'")


def test_a_store_keeps_its_name_in_rows_when_it_gets_an_id(tmp_path: Path):
    """The first opening by reput assigns one; a later cut removes the rows of both periods."""
    lake = tmp_path / "lake"
    export(written(tmp_path / "other", "x", 10, ONE).store, lake)
    log = written(tmp_path / "store", "a")
    export(log.store, lake, store_id="broker-a")
    (log.store / "reput").mkdir()
    (log.store / "reput" / "store.json").write_bytes(seal(StoreIdentity(1, TWO, {})))
    append(log, "b", 5)
    for records in (5, 0):
        assert export(log.store, lake).records == records
    assert rows_by_store(lake) == {ONE: 10, "broker-a": 35}
    (log.store / "reput" / "epochs").write_bytes(read_epochs(log.store, TWO).begin(log.offsets[20], START_MS).seal())
    log.data, log.offsets = log.data[: log.offsets[20]], log.offsets[:20]
    append(log, "c", 2)
    assert export(log.store, lake).records == 2
    assert rows_by_store(lake) == {ONE: 10, "broker-a": 22}


def test_a_copy_that_went_another_way_is_no_store_of_its_own(tmp_path: Path):
    """Common records would be duplicated; the operator decides whether it replaces the other one."""
    lake = tmp_path / "lake"
    log = written(tmp_path / "one", "a", 60)
    export(log.store, lake)
    copy = written(tmp_path / "copy", "a", 30, store_id=TWO)
    append(copy, "b", 40)
    with pytest.raises(StoreError, match=r"the lake holds another store: .* marks_held=[1-9]") as raised:
        export(copy.store, lake)
    (known,) = rows_by_store(lake)
    assert f"--store-id {known}" in raised.value.advice
    assert rows_by_store(lake) == {known: 60}
    export(copy.store, lake, store_id=known)
    assert rows_by_store(lake) == {known: 70}


def test_a_lake_without_the_column_takes_one_store(tmp_path: Path):
    """An older version created it; it continues with its store and refuses all others."""
    lake = tmp_path / "lake"
    one, two = written(tmp_path / "one", "a", 30, ONE), written(tmp_path / "two", "b", 30, TWO)
    export(one.store, lake)
    make_old(lake)
    append(one, "a", 5)
    assert export(one.store, lake).records == 5
    assert "store" not in [field.name for field in DeltaTable(lake).schema().fields]
    for given in ({}, {"store_id": "broker-b"}, {"name": "second"}):
        with pytest.raises(StoreError, match=r"the lake hold"):
            export(two.store, lake, **given)
    assert lake_rows(lake).num_rows == 35


@pytest.mark.parametrize("accepted", [False, True], ids=["asked", "accepted"])
@pytest.mark.parametrize("marked", [True, False], ids=["marks", "no marks"])
def test_rows_that_may_be_anothers_are_never_taken_out(tmp_path: Path, marked: bool, accepted: bool):
    """If an older version exported two stores into a lake without the column, all rows stay, and both ids are named."""
    lake = tmp_path / "lake"
    one, two = written(tmp_path / "one", "a", 30, ONE), written(tmp_path / "two", "b", 40, TWO)
    export(one.store, lake)
    export(two.store, lake)
    make_old(lake)
    if not marked:
        forget_marks(lake)
    for log in (one, two):
        append(log, "c", 2)
        assert export(log.store, lake).records == 2
    if not marked:
        forget_marks(lake)
    (two.store / "reput" / "epochs").write_bytes(read_epochs(two.store, TWO).begin(two.offsets[12], START_MS).seal())
    two.data, two.offsets = two.data[: two.offsets[12]], two.offsets[:12]
    append(two, "d", 5)
    with pytest.raises(StoreError, match=f"the lake has rows of several exports.* lake_store_id={ONE},{TWO} "):
        export(two.store, lake, accept_truncation=accepted)
    assert lake_rows(lake).num_rows == 74


@pytest.mark.parametrize("recorded", [ONE, None])
def test_one_store_under_two_names_is_refused(tmp_path: Path, recorded: str | None):
    """Its rows would be duplicated."""
    lake = tmp_path / "lake"
    log = written(tmp_path / "store", "a", 30, recorded)
    export(log.store, lake)
    with pytest.raises(
        StoreError, match=r"has this store's rows from an export with another name: .* name=export asked=more"
    ):
        export(log.store, lake, name="more")
    copy = tmp_path / "copy"
    shutil.copytree(log.store, copy)
    assert export(copy, lake).records == 0
    assert lake_rows(lake).num_rows == 30


def test_a_name_that_the_lake_does_not_have_for_a_log_is_refused(tmp_path: Path):
    """Both names are in the error: its rows would silently get the other one."""
    lake = tmp_path / "lake"
    log = written(tmp_path / "store", "a")
    export(log.store, lake, store_id="broker-a")
    append(log, "b", 5)
    with pytest.raises(StoreError, match=r"under another id: .* store_id=broker-b lake_store_id=broker-a ") as raised:
        export(log.store, lake, store_id="broker-b")
    assert "Give --store-id broker-a (storeId), or export into another folder." in raised.value.advice
    assert rows_by_store(lake) == {"broker-a": 30}
    assert export(log.store, lake, store_id="broker-a").records == 5
    assert rows_by_store(lake) == {"broker-a": 35}


@pytest.mark.parametrize("other", ["two", "unknown"])
def test_a_name_that_is_not_a_recorded_stores_is_refused(tmp_path: Path, other: str):
    """The store's own id decides which rows it owns, so a different name is a mistake, even that of another store."""
    lake = tmp_path / "lake"
    log = written(tmp_path / "one", "a", 30, ONE)
    export(log.store, lake)
    export(written(tmp_path / "two", "b", 10, TWO).store, lake)
    append(log, "a", 5)
    given = TWO if other == "two" else "unknown"
    with pytest.raises(StoreError, match=f"under another id: .* store_id={given} lake_store_id={ONE} "):
        export(log.store, lake, store_id=given)
    assert rows_by_store(lake) == {ONE: 30, TWO: 10}
    assert export(log.store, lake, store_id=ONE).records == 5


def test_the_name_in_rows_goes_on_being_taken_after_the_store_has_an_id(tmp_path: Path):
    """A command with the store's name in rows works before and after reput opens it, and without its new id."""
    lake = tmp_path / "lake"
    log = written(tmp_path / "store", "a")
    export(log.store, lake, store_id="broker-a")
    (log.store / "reput").mkdir()
    (log.store / "reput" / "store.json").write_bytes(seal(StoreIdentity(1, TWO, {})))
    for letter in "bc":
        append(log, letter, 5)
        assert export(log.store, lake, store_id="broker-a").records == 5
    (log.store / "reput" / "store.json").unlink()
    assert export(log.store, lake, store_id="broker-a").records == 0
    assert rows_by_store(lake) == {"broker-a": 40}
