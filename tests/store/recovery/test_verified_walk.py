"""A log that other processes have verified in parts is walked as if it had been read here."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from golden_sets import CLEAN_SETS
from reput.settings import Settings
from reput.store.check.check import check_store
from reput.store.log.segments import Segments
from reput.store.recovery.log_walk import Extent
from reput.store.recovery.verified_walk import VerifiedWalk, verify_range
from written_log import WrittenLog

DELAY_LEVELS = Settings().message_delay_level


def in_parts(store: Path, cuts: list[int]) -> Callable[[int, int], Iterator[Extent]]:
    """Return a function that verifies [begin, until) in parts, cut at *cuts*, as if sent by other processes."""

    def verify(begin: int, until: int) -> Iterator[Extent]:
        inside = [cut for cut in cuts if begin < cut < until]
        for low, high in pairwise([begin, *inside, until]):
            for extent in verify_range(store, DELAY_LEVELS, low, high):
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
        found = check_store(store, Settings(), verifier=in_parts(store, begins[::step]))
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
        found = check_store(store, Settings(), verifier=in_parts(store, cuts))
        assert msgspec.to_builtins(found) == msgspec.to_builtins(expected)


def test_bodies_are_left_out(tmp_path: Path):
    """The messages are a fraction of the log; everything except the bodies can be read from them."""
    log = WrittenLog(tmp_path)
    for number in range(40):
        log.append(b"%d" % number * 300, topic=b"topic-%d" % (number % 3))
    [extent] = list(verify_range(log.save(), DELAY_LEVELS, 0, log.offsets[6]))
    columns = extent.columns
    assert columns is not None
    assert extent.end == log.offsets[6]
    assert len(columns.data) < log.offsets[6] // 2
    assert columns.topics() == [b"topic-%d" % (number % 3) for number in range(6)]
    assert columns.properties(5)["KEYS"] == "k5"


def test_what_retention_has_taken_nobody_verifies(tmp_path: Path):
    """The walk determines the meaning; a Spark task does not fail because of it."""
    log = WrittenLog(tmp_path)
    for _ in range(60):
        log.append(b"x" * 900)
    store = log.save()
    begins = Segments(store / "commitlog").begins
    assert len(begins) > 2
    (store / "commitlog" / f"{0:020}").unlink()
    assert list(verify_range(store, DELAY_LEVELS, 0, begins[1])) == []
