"""The rows of every golden store, compared with the listing of RocketMQ's own decoder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import reput.table
from golden_sets import CLEAN_SETS, some_of
from reput.errors import DamagedStore
from reput.table import LogTable, table_options
from written_log import row_of_line

pytestmark = pytest.mark.slow

Listing = Callable[[str], list[dict[str, Any]]]
AS_STORED = table_options(decompress=False)


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows as plain values: times in microseconds, properties as dicts."""
    for name in ("bornTimestamp", "storeTimestamp"):
        table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.int64()))
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        row["properties"] = dict(row["properties"])
    return rows


@pytest.mark.parametrize("name", CLEAN_SETS)
def test_rows_equal_rocketmqs_listing(name: str, golden_read_only: Callable[[str], Path], golden_listing: Listing):
    """Every record of every store that RocketMQ closed is a row, in order, with equal fields."""
    table = reput.table.read(golden_read_only(name) / "store", decompress=False)
    assert rows_of(table) == [row_of_line(line) for line in golden_listing(name)]


@pytest.mark.parametrize("name", some_of(CLEAN_SETS, "basic-5.5", "batch-4.9"))
def test_any_split_size_gives_the_same_rows(name: str, golden_read_only: Callable[[str], Path]):
    """Splits are consecutive, and together they are the whole log."""
    store = golden_read_only(name) / "store"
    whole = reput.table.read(store, decompress=False)
    log = LogTable(store, AS_STORED)
    begin, until = log.bounds()
    for split_bytes in (1, 999, 4096, 65_537, 1 << 30):
        splits = log.splits(split_bytes=split_bytes)
        assert [split.begin for split in splits] == [begin, *(split.until for split in splits[:-1])]
        assert splits[-1].until == until
        parts = [batch for split in splits for batch in log.batches(split.begin, split.until)]
        assert pa.Table.from_batches(parts, log.schema).equals(whole)


@pytest.mark.parametrize("name", some_of(CLEAN_SETS, "basic-5.5", "batch-4.9"))
def test_any_batch_size_gives_the_same_rows(name: str, golden_read_only: Callable[[str], Path]):
    """The number of rows per batch has no other effect."""
    store = golden_read_only(name) / "store"
    whole = reput.table.read(store, decompress=False)
    for rows, size in ((1, 1), (7, 5000), (4096, 100_000)):
        assert reput.table.read(store, decompress=False, batch_rows=rows, batch_bytes=size).equals(whole)


def test_bodies_are_unpacked(golden_read_only: Callable[[str], Path], golden_listing: Listing):
    """Bodies that a client compressed with zlib, LZ4 or zstd are decompressed."""
    store = golden_read_only("basic-5.3") / "store"
    packed = {line["sysFlag"] >> 8 & 7 for line in golden_listing("basic-5.3") if line["sysFlag"] & 1}
    assert packed >= {1, 2, 3}
    stored = reput.table.read(store, columns=["sysFlag", "body"], decompress=False).to_pylist()
    unpacked = reput.table.read(store, columns=["body"]).column("body").to_pylist()
    for row, body in zip(stored, unpacked, strict=True):
        if row["sysFlag"] & 1:
            assert len(body) > len(row["body"])
        else:
            assert body == row["body"]


def test_a_body_that_only_claims_to_be_packed_stays_as_stored(
    golden_read_only: Callable[[str], Path], caplog: pytest.LogCaptureFixture
):
    """A sender may set the flag without compressing: the bytes are kept, and a warning has their number."""
    store = golden_read_only("direct-4.9") / "store"
    assert reput.table.read(store)["body"].equals(reput.table.read(store, decompress=False)["body"])
    assert "bodies are not compressed as their flags say" in caplog.text


@pytest.mark.parametrize("part", ["before", "lost-before", "torn-before", "soft-before"])
def test_a_killed_brokers_log_ends_at_the_last_whole_record(
    part: str, golden_read_only: Callable[[str], Path], golden_listing: Listing, golden_about: Callable[[str], Any]
):
    """The rows of a killed store are those that recovery keeps; a record torn in its properties is not one."""
    lines = golden_listing("crash-5.3" if part != "soft-before" else f"crash-5.3/{part}")
    kept = golden_about("crash-5.3")["parts"][part]["maxOffsetOfRealStore"]
    expected = [line["physicalOffset"] for line in lines if line["physicalOffset"] < kept]
    if part == "soft-before":
        expected.pop()
    table = reput.table.read(golden_read_only("crash-5.3") / part / "store", columns=["commitLogOffset"])
    assert table["commitLogOffset"].to_pylist() == expected


@pytest.mark.parametrize("part", ["head-before", "head-after", "rebuilt-before"])
def test_a_log_without_its_oldest_segments_begins_later(
    part: str, golden_read_only: Callable[[str], Path], golden_listing: Listing, golden_about: Callable[[str], Any]
):
    """A broker deletes its oldest segments; the rows begin with the first remaining record."""
    table = reput.table.read(golden_read_only("aged-4.9") / part / "store", columns=["commitLogOffset"])
    count = golden_about("aged-4.9")["parts"][part]["listing"]["records"]
    expected = [line["physicalOffset"] for line in golden_listing("aged-4.9")][:count]
    assert table["commitLogOffset"].to_pylist() == expected


def test_a_flipped_bit_in_a_body_of_rocketmqs_is_found(
    golden_read_only: Callable[[str], Path], golden_listing: Listing
):
    """A changed body stops the read, or is reported and omitted."""
    store = golden_read_only("damaged-4.9") / "clean-before" / "store"
    (wrong,) = (line for line in golden_listing("damaged-4.9") if not line["crcOk"])
    with pytest.raises(DamagedStore, match=f"from={wrong['physicalOffset']} "):
        reput.table.read(store)
    log = LogTable(store, table_options(on_corruption="report", columns=("commitLogOffset",)))
    table = pa.Table.from_batches(log.batches(*log.bounds()), log.schema)
    assert wrong["physicalOffset"] not in table["commitLogOffset"].to_pylist()
    assert table.num_rows == len(golden_listing("damaged-4.9")) - 1
    assert [damaged.begin for damaged in log.damage] == [wrong["physicalOffset"]]
