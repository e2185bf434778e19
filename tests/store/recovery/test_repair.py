"""Repair: decisions about damage are shown first, executed durably, and lose no byte."""

from __future__ import annotations

import msgspec
import pytest

from reput.errors import ConfigError, DamagedStore, NotAStore, StoreLocked
from reput.store.disk.files import Files, WrittenFile
from reput.store.record.message import Message
from reput.store.recovery.damage_list import DamagedRange, read_damage
from reput.store.recovery.repair import accept, cut, plan_accept, plan_cut
from reput.store.state.epochs import read_epochs
from reput_hooks import Cursor
from small_store import SEGMENT_SIZE, ManualClock, extents, log_bytes, message_of_size, open_store, overwrite, records
from written_log import START_MS, WrittenLog


@pytest.fixture
def damaged(tmp_path):
    """A store that reput closed, with one record garbled afterwards; its results, and which one is garbled."""
    opened = open_store(tmp_path / "store")
    results = [opened.put(message_of_size(700, queue_id=number % 2)) for number in range(14)]
    opened.close(views_complete=True)
    overwrite(tmp_path / "store", results[6].commit_log_offset + 100, b"?")
    for name in ("epochs", "queue_offsets"):
        # Without these files, reput checks every record again.
        (tmp_path / "store" / "reput" / name).unlink()
    return tmp_path / "store", results, 6


def test_a_damaged_store_is_cut_before_its_damage(damaged):
    """Then it opens, continues there, and its views learn of a new epoch."""
    store, results, number = damaged
    cut_at = results[number].commit_log_offset
    with pytest.raises(DamagedStore, match=f"from={cut_at}"):
        open_store(store)
    plan = cut(store, cut_at, clock=ManualClock())
    assert (plan.cut_at, plan.until, plan.records) == (cut_at, results[-1].next_commit_log_offset, 7)
    assert extents(store)[-1].endswith(f"..{cut_at} count=1")
    opened = open_store(store)
    assert opened.epochs.history[-1].start_offset <= cut_at
    assert opened.epochs.epoch > 1
    result = opened.put(Message("orders", b"new", queue_id=number % 2))
    assert (result.commit_log_offset, result.queue_offset) == (cut_at, results[number].queue_offset)
    opened.close(views_complete=True)
    assert len(records(store)) == number + 1


def test_what_a_cut_leaves_is_on_disk_before_the_cut_says_so(damaged):
    """A killed writer may have left it in the system's pages: a power cut would otherwise make a hole in the log."""
    store, results, number = damaged
    cut_at = results[number].commit_log_offset
    calls = []

    class Opened(WrittenFile):
        def force(self):
            calls.append(self.path.parent.name)
            super().force()

    class Noted(Files):
        def open(self, path):
            opened = Opened(path)
            opened.path = path
            return opened

        def replace(self, path, data):
            calls.append(path.name)
            super().replace(path, data)

    cut(store, cut_at, files=Noted())
    assert calls[: cut_at // SEGMENT_SIZE + 2] == ["commitlog"] * (cut_at // SEGMENT_SIZE + 1) + ["epochs"]


def test_every_byte_that_is_cut_is_kept(damaged):
    """The rest of the segment under its offset, later segments under their names."""
    store, results, number = damaged
    before = log_bytes(store)
    cut_at = results[number].commit_log_offset
    later, rest = sorted(cut(store, cut_at).kept, key=lambda path: "-" in path.name)
    assert later.name == f"{8192:020d}"
    assert rest.name.startswith(f"{cut_at:020d}-")
    assert rest.read_bytes().ljust(8192 - cut_at, b"\0") + later.read_bytes() == before[cut_at:]
    assert not log_bytes(store)[cut_at:].strip(b"\0")


def test_a_cut_says_first_what_would_be_lost(damaged):
    """Records by queue and time, and the damage among them; the store is not touched."""
    store, results, number = damaged
    before = log_bytes(store)
    plan = plan_cut(store, results[number].commit_log_offset)
    assert plan.records == 7
    assert [(damage.begin, damage.end) for damage in plan.damage] == [
        (results[number].commit_log_offset, results[number].next_commit_log_offset)
    ]
    assert [(queue.topic, queue.queue_id, queue.records, queue.queue_offset) for queue in plan.queues] == [
        ("orders", 0, 3, 4),
        ("orders", 1, 4, 3),
    ]
    assert [queue.queue_offset_end for queue in plan.queues] == [7, 7]
    assert (plan.store_timestamp_min, plan.store_timestamp_max) == (START_MS, START_MS)
    assert plan.kept == []
    assert log_bytes(store) == before
    assert not (store / "reput" / "cut").exists()


@pytest.mark.parametrize("shift", [-1, 1, 350])
def test_a_record_is_not_cut_in_two(damaged, shift):
    """The error has the record's begin and end."""
    store, results, _ = damaged
    inside = results[8].commit_log_offset + shift
    with pytest.raises(ConfigError, match="goes on there") as caught:
        plan_cut(store, inside)
    hit = results[8] if shift > 0 else results[7]
    assert caught.value.advice == f"Cut at {hit.commit_log_offset}, or at {hit.next_commit_log_offset}."


def test_neither_damage_nor_a_blank_is_cut_in_two(damaged):
    """They are kept or given up as a whole."""
    store, results, number = damaged
    with pytest.raises(ConfigError, match="a damage range goes on there"):
        plan_cut(store, results[number].commit_log_offset + 1)
    with pytest.raises(ConfigError, match="a blank range goes on there"):
        plan_cut(store, 4095)


@pytest.mark.parametrize("cut_at", [-1, 1 << 40])
def test_the_log_must_have_the_offset(damaged, cut_at):
    """A wrong offset cuts nothing."""
    with pytest.raises(ConfigError, match="does not contain that offset"):
        plan_cut(damaged[0], cut_at)


def test_a_cut_that_was_interrupted_is_done_again(damaged):
    """At any step: the log before the cut is whole, and the removed bytes are kept once."""
    store, results, number = damaged
    cut_at = results[number].commit_log_offset
    cut(store, cut_at)
    again = cut(store, cut_at)
    assert (again.records, again.kept) == (0, [])
    open_store(store).close(views_complete=True)


def test_a_second_cut_at_the_same_place_keeps_both(damaged):
    """An earlier copy is never replaced."""
    store, results, number = damaged
    cut_at = results[number].commit_log_offset
    first = cut(store, cut_at)
    opened = open_store(store)
    for _ in range(2):
        opened.put(message_of_size(700))
    opened.close(views_complete=True)
    second = cut(store, cut_at)
    assert set(first.kept).isdisjoint(second.kept)
    assert all(path.exists() for path in first.kept + second.kept)


def test_accepted_damage_stays_and_the_log_goes_on(damaged):
    """Records before and after it can be read; the next one goes after the last, with the next queue offset."""
    store, results, number = damaged
    begin, end = results[number].commit_log_offset, results[number].next_commit_log_offset
    before = log_bytes(store)
    plan = accept(store, begin, end)
    assert (plan.records_behind, plan.reason) == (7, "a CRC does not match")
    assert read_damage(store).ranges == [DamagedRange(begin, end, "a CRC does not match", accepted=True)]
    assert log_bytes(store) == before
    opened = open_store(store)
    result = opened.put(Message("orders", b"new", queue_id=1))
    assert result.commit_log_offset == results[-1].next_commit_log_offset
    assert result.queue_offset == 7
    opened.close(views_complete=True)
    assert f"damage {begin}..{end}" in extents(store)
    # Also if the store was not closed, and everything is checked again.
    for name in ("epochs", "queue_offsets"):
        (store / "reput" / name).unlink()
    open_store(store).close(views_complete=True)


def test_accepting_says_first_what_it_means(damaged):
    """Nothing is written."""
    store, results, number = damaged
    plan = plan_accept(store, results[number].commit_log_offset, results[number].next_commit_log_offset)
    assert plan.records_behind == 7
    assert not (store / "reput" / "damage").exists()


def test_only_a_damaged_range_can_be_accepted(damaged):
    """The error lists the damaged ranges."""
    store, results, number = damaged
    begin, end = results[number].commit_log_offset, results[number].next_commit_log_offset
    with pytest.raises(ConfigError, match=f"damaged={begin}..{end}"):
        accept(store, begin, end + 1)


def test_damage_at_the_end_of_the_log_can_only_be_cut(tmp_path):
    """There is nothing after it to continue with. The store opens once it is cut."""
    opened = open_store(tmp_path / "store")
    results = [opened.put(message_of_size(300)) for _ in range(5)]
    opened.close(views_complete=True)
    last = results[-1]
    overwrite(tmp_path / "store", last.commit_log_offset + 120, b"?")
    with pytest.raises(DamagedStore, match=f"from={last.commit_log_offset}") as caught:
        open_store(tmp_path / "store")
    assert "--accept" not in caught.value.advice
    with pytest.raises(ConfigError, match="does not continue"):
        accept(tmp_path / "store", last.commit_log_offset, last.next_commit_log_offset)
    plan = cut(tmp_path / "store", last.commit_log_offset)
    assert (plan.records, len(plan.damage), len(plan.kept)) == (0, 1, 1)
    opened = open_store(tmp_path / "store")
    assert opened.put(message_of_size(300)).commit_log_offset == last.commit_log_offset
    opened.close(views_complete=True)


def test_a_cut_forgets_damage_that_was_accepted_behind_it(damaged):
    """It is removed with the bytes."""
    store, results, number = damaged
    accept(store, results[number].commit_log_offset, results[number].next_commit_log_offset)
    cut(store, results[3].commit_log_offset)
    assert read_damage(store).ranges == []


def test_views_are_told_to_forget_what_was_cut(damaged):
    """A cursor beyond the cut diverges there, an earlier one does not."""
    store, results, number = damaged
    accept(store, results[number].commit_log_offset, results[number].next_commit_log_offset)
    opened = open_store(store)
    epochs = opened.epochs
    opened.close(views_complete=True)
    cut_at = results[3].commit_log_offset
    cut(store, cut_at)
    after = read_epochs(store, epochs.store_id)
    behind = Cursor(epochs.store_id, epochs.epoch, results[9].commit_log_offset, 0)
    difference = after.first_difference(behind, 0)
    assert difference is not None
    assert difference.commit_log_offset == cut_at
    assert after.first_difference(msgspec.structs.replace(behind, commit_log_offset=cut_at), 0) is None


def test_after_retention_a_cut_reaches_no_further_than_it_says(tmp_path):
    """The next opening identifies the log by the cut, although nothing else identifies it."""
    store = tmp_path / "store"
    opened = open_store(store)
    results = [opened.put(message_of_size(300)) for _ in range(60)]
    opened.close(views_complete=True)
    view = Cursor(opened.store_id, opened.epochs.epoch, opened.appended, 0)
    segments = sorted((store / "commitlog").iterdir())
    for path in segments[:3]:
        path.unlink()
    cut_at = next(result.commit_log_offset for result in results if result.commit_log_offset > 4 * SEGMENT_SIZE)
    cut(store, cut_at)
    again = open_store(store)
    difference = again.epochs.first_difference(view, again.commit_log_offset_min)
    assert difference is not None
    assert difference.commit_log_offset == cut_at == again.appended
    assert all(epoch.located for epoch in again.epochs.history)
    again.close(views_complete=True)


def test_a_store_that_is_being_written_is_not_repaired(tmp_path):
    """The writer is named."""
    opened = open_store(tmp_path / "store")
    opened.put(message_of_size(300))
    with pytest.raises(StoreLocked, match="pid="):
        cut(tmp_path / "store", 0)
    with pytest.raises(StoreLocked, match="pid="):
        accept(tmp_path / "store", 0, 300)
    opened.close(views_complete=True)


def test_what_is_no_store_is_not_repaired(tmp_path):
    """Nothing is created in it."""
    with pytest.raises(NotAStore):
        cut(tmp_path, 0)
    with pytest.raises(NotAStore):
        accept(tmp_path, 0, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_store_of_rocketmq_is_cut_too(tmp_path):
    """It gets an epoch from which on its history is ours; a log without records cannot be cut to nothing."""
    log = WrittenLog(tmp_path / "store", 4096)
    for _ in range(10):
        log.append(b"x" * 900)
    log.save()
    with pytest.raises(ConfigError, match="the cut would remove the whole log"):
        cut(log.store, 0)
    plan = cut(log.store, log.offsets[5])
    assert plan.records == 5
    opened = open_store(log.store)
    assert opened.put(Message("orders", b"")).queue_offset == 5
    opened.close(views_complete=True)


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("part", ["clean-before", "abort-before", "clean-after"])
def test_a_real_damaged_store_is_repaired_either_way(golden, golden_about, part):
    """The flipped bit costs one record, or all later ones, as the operator decides."""
    about = golden_about("damaged-4.9")["parts"][part]
    begin = golden_about("damaged-4.9")["damage"]["recordOffset"]
    store = golden("damaged-4.9") / part / "store"
    with pytest.raises(DamagedStore, match=f"from={begin}"):
        open_store(store)
    assert cut(store, begin).records == 26
    open_store(store).close(views_complete=True)
    assert len(records(store)) == 817 == about["listing"]["records"] - (27 if about["listing"]["records"] > 817 else 0)

    other = golden("damaged-4.9") / part / "store"
    assert accept(other, begin, 661309).records_behind == 26
    open_store(other).close(views_complete=True)
    assert len(records(other)) == 843
