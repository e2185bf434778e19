"""A log that other processes have verified in parts is checked as if it had been read here."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

import reput
from golden_sets import CLEAN_SETS
from reput.settings import Settings
from reput.store.check import check
from reput.store.check.check import check_store
from reput.store.check.verified_range import RangePlan, verify_range
from reput.store.index.index_sizes import IndexSizes
from reput.store.log.segments import Segments
from reput.store.recovery.check_report import CheckReport
from reput.store.recovery.log_walk import Extent
from reput.store.recovery.verified_walk import VerifiedWalk
from written_log import START_MS, WrittenLog

SIZES = {"max_hash_slot_num": 100, "max_index_num": 2000}


def plan_of(store: Path) -> RangePlan:
    """Return the plan of a check of a closed store."""
    levels = Settings().message_delay_level
    return RangePlan(str(store), levels, IndexSizes(5, 5), [], live=False, unclean=False, demand_crc=False)


def in_parts(cuts: list[int]) -> Callable[[RangePlan, int, int], Iterator[Extent]]:
    """Return a function that verifies [begin, until) in parts, cut at *cuts*, as if sent by other processes."""

    def verify(plan: RangePlan, begin: int, until: int) -> Iterator[Extent]:
        inside = [cut for cut in cuts if begin < cut < until]
        for low, high in pairwise([begin, *inside, until]):
            for extent in verify_range(plan, low, high):
                yield pickle.loads(pickle.dumps(extent))

    return verify


def record_begins(store: Path) -> list[int]:
    """Return the begins of a store's whole records."""
    walk = VerifiedWalk(Segments(store / "commitlog"), [], unclean=False)
    runs = [extent.columns for extent in walk.walk() if extent.columns is not None]
    return [int(offset) for columns in runs for offset in columns.header["commit_log_offset"]]


@pytest.mark.slow
@pytest.mark.parametrize("part", [*CLEAN_SETS, "damaged-4.9/clean-before", "crash-5.3/torn-before"])
def test_the_report_of_a_check_is_the_same(golden_read_only: Callable[[str], Path], part: str):
    """Whichever process read the bytes, and wherever the log was split."""
    name, _, below = part.partition("/")
    store = golden_read_only(name) / below / "store"
    expected = check_store(store, Settings())
    begins = record_begins(store)
    for step in (7, 50):
        found = check_store(store, Settings(), verifier=in_parts(begins[::step]))
        assert msgspec.to_builtins(found) == msgspec.to_builtins(expected)


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("damaged", [0, 1, 40, 59])
@pytest.mark.parametrize("place", [4, 100], ids=["magic", "body"])
def test_what_is_no_record_is_judged_by_who_walks(tmp_path: Path, damaged: int, place: int):
    """Damage, and bytes after the end, in any range; a cut within damage is ignored."""
    log = WrittenLog(tmp_path)
    for number in range(60):
        log.append(b"%d" % number * 30)
    log.data[log.offsets[damaged] + place] ^= 0xFF
    store = log.save()
    expected = check_store(store, Settings())
    for cuts in ([], log.offsets[::9], log.offsets[:damaged], [log.offsets[damaged]], [log.offsets[damaged] + 50]):
        found = check_store(store, Settings(), verifier=in_parts(cuts))
        assert msgspec.to_builtins(found) == msgspec.to_builtins(expected)


@pytest.fixture
def viewed(tmp_path: Path) -> Path:
    """Return a closed store of 120 messages in three queues of two topics, with its views."""
    store = tmp_path / "store"
    with reput.open(store, mode="inline", mapped_file_size_commit_log=1 << 16, **SIZES) as opened:
        opened.put_batch(
            [
                reput.Message(f"t{number % 2}", b"%d" % number * 20, tags="a", keys=[f"k{number}"], queue_id=number % 3)
                for number in range(120)
            ]
        )
    return store


def walked_at(store: Path, cuts: list[int], monkeypatch: pytest.MonkeyPatch) -> tuple[CheckReport, list[int]]:
    """Return the report of a check of which others verify the parts, and where the check itself has read."""
    begins: list[int] = []

    class NotedWalk(VerifiedWalk):
        def readable_extent(self, at: int, until: int | None = None) -> Extent | str:
            begins.append(at)
            return super().readable_extent(at, until)

    monkeypatch.setattr(check, "VerifiedWalk", NotedWalk)
    return check_store(store, Settings(**SIZES), verifier=in_parts(cuts)), begins


def test_what_others_have_proved_is_not_read_again(viewed: Path, monkeypatch: pytest.MonkeyPatch):
    """Neither the log nor the views, except where the log ends."""
    begins = record_begins(viewed)
    expected = check_store(viewed, Settings(**SIZES))
    assert {view.state for view in expected.views.values()} == {"equal", "absent"}
    found, read = walked_at(viewed, begins[::40], monkeypatch)
    assert msgspec.to_builtins(found) == msgspec.to_builtins(expected)
    assert all(at > begins[-1] for at in read)


@pytest.mark.parametrize(
    "place",
    [("consumequeue/t1/1/*", 20 * 15 + 7), ("consumequeue/t0/2/*", 20 * 5 + 11), ("index/*", 40 + 400 + 20 * 80)],
)
def test_a_view_that_differs_in_one_range_is_compared_there(
    viewed: Path, place: tuple[str, int], monkeypatch: pytest.MonkeyPatch
):
    """By the check itself, whose report names each difference as if it had read everything."""
    pattern, at = place
    [path] = viewed.glob(pattern)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    begins = record_begins(viewed)
    expected = check_store(viewed, Settings(**SIZES))
    assert sum(view.difference_count for view in expected.views.values()) >= 1
    for step in (1, 40):
        found, read = walked_at(viewed, begins[::step], monkeypatch)
        assert msgspec.to_builtins(found) == msgspec.to_builtins(expected)
        assert 0 < len([at for at in read if at <= begins[-1]]) < len(begins[::step])


@pytest.mark.parametrize(
    "fields", [{"queue_offset": 9}, {"queue_offset": 0}, {"store_timestamp": START_MS - 9_000_000}]
)
@pytest.mark.parametrize("wrong", [0, 1, 10, 19, 20, 29])
def test_a_record_out_of_sequence_is_found_in_any_range(tmp_path: Path, fields: dict[str, int], wrong: int):
    """Whether a range has it within, or begins or ends with it."""
    log = WrittenLog(tmp_path)
    for number in range(30):
        log.append(queue_id=number % 2, **(fields if number == wrong else {}))
        if number == wrong:
            log.queue_offsets[b"orders", number % 2] = number // 2 + 1
    store = log.save()
    expected = check_store(store, Settings())
    for step in (1, 2, 10, 30):
        found = check_store(store, Settings(), verifier=in_parts(log.offsets[::step]))
        assert msgspec.to_builtins(found) == msgspec.to_builtins(expected)


def test_few_records_are_left_and_no_body(tmp_path: Path):
    """Of each queue the first two and the last; everything except the bodies can be read from them."""
    log = WrittenLog(tmp_path, segment_size=1 << 16)
    for number in range(40):
        log.append(b"%d" % number * 300, topic=b"topic-%d" % (number % 3))
    store = log.save()
    [extent] = list(verify_range(plan_of(store), 0, log.offsets[10]))
    columns = extent.columns
    assert columns is not None
    assert (extent.end, extent.record_count) == (log.offsets[10], 10)
    assert columns.header["queue_offset"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3]
    assert len(columns.data) < log.offsets[10] // 2
    assert columns.topics()[-1] == b"topic-0"
    assert columns.properties(8)["KEYS"] == "k9"


def test_what_retention_has_taken_nobody_verifies(tmp_path: Path):
    """The walk determines the meaning; a Spark task does not fail because of it."""
    log = WrittenLog(tmp_path)
    for _ in range(60):
        log.append(b"x" * 900)
    store = log.save()
    begins = Segments(store / "commitlog").begins
    assert len(begins) > 2
    (store / "commitlog" / f"{0:020}").unlink()
    assert list(verify_range(plan_of(store), 0, begins[1])) == []
