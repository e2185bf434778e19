"""Checking the index: missing, wrong, misplaced and unreachable keys are named."""

from __future__ import annotations

import itertools
import mmap
import shutil
from struct import Struct

import pytest

import reput
from dispatcher_host import cut_into_batches, log_batch
from reput.settings import Settings
from reput.store.check.check import check_store
from reput.store.index.index_builder import IndexBuilder
from reput.store.state.recorded_settings import load_store_settings

HEADER = Struct(">qqqqii")
ENTRY = Struct(">iqii")
SLOT = Struct(">i")
SLOTS = 100


@pytest.fixture
def store(golden):
    """A store of RocketMQ with five index files of 100 slots and 400 entries, to be damaged."""
    return golden("basic-5.3") / "store"


def index_file(store, number):
    """Return the path of one file."""
    return sorted((store / "index").iterdir())[number]


def entry_at(position):
    """Return the position of an entry's first byte."""
    return HEADER.size + SLOT.size * SLOTS + ENTRY.size * position


class Patch:
    """One index file in memory, to be changed and written back by `save`."""

    def __init__(self, store, number):
        self.path = index_file(store, number)
        self.data = bytearray(self.path.read_bytes())

    def entry(self, position):
        return list(ENTRY.unpack_from(self.data, entry_at(position)))

    def put_entry(self, position, *fields):
        self.data[entry_at(position) : entry_at(position) + ENTRY.size] = ENTRY.pack(*fields)

    def slot(self, number):
        return SLOT.unpack_from(self.data, HEADER.size + SLOT.size * number)[0]

    def put_slot(self, number, value):
        at = HEADER.size + SLOT.size * number
        self.data[at : at + SLOT.size] = SLOT.pack(value)

    def header(self):
        return list(HEADER.unpack_from(self.data))

    def put_header(self, *fields):
        self.data[: HEADER.size] = HEADER.pack(*fields)

    def save(self):
        self.path.write_bytes(self.data)

    def cut(self, count):
        """Restore the file's state when it had *count* - 1 entries."""
        header = self.header()
        for position in range(header[5] - 1, count - 1, -1):
            code, _, _, previous = self.entry(position)
            self.put_slot(code % SLOTS, previous)
            self.put_entry(position, 0, 0, 0, 0)
        _, offset, seconds, _ = self.entry(count - 1)
        used = sum(self.slot(number) != 0 for number in range(SLOTS))
        self.put_header(header[0], header[0] + seconds * 1000, header[2], offset, used, count)


def view(store):
    """Return a check's result for the index."""
    return check_store(store, Settings()).views["index"]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (0, "entry has another hash"),
        (1, "entry has no record with keys in the log"),
        (2, "entry has another time"),
        (3, "chain is broken"),
    ],
)
def test_an_entry_with_a_wrong_field_is_a_difference(store, field, text):
    """The message names file, position and record."""
    patch = Patch(store, 1)
    fields = patch.entry(200)
    fields[field] = fields[field] + 1 if field != 3 else 250
    patch.put_entry(200, *fields)
    patch.save()
    found = view(store)
    assert found.state == "different"
    assert any(
        difference.startswith(f"{text}: file={patch.path.name} position=200") for difference in found.differences
    )


def test_keys_that_are_missing_at_the_end_are_not_yet_there(store):
    """The index lags by the part of the log after the last record with keys."""
    patch = Patch(store, 4)
    first = next(position for position in range(280, 297) if patch.entry(position)[1] != patch.entry(position - 1)[1])
    offset = patch.entry(first)[1]
    patch.cut(first)
    patch.save()
    found = view(store)
    assert (found.state, found.difference_count) == ("behind", 0)
    assert found.behind_bytes == 699705 - offset


def test_keys_of_the_last_record_that_are_there_in_part_are_behind(store):
    """A dispatch was interrupted between two keys."""
    patch = Patch(store, 4)
    count = patch.header()[5]
    offset = patch.entry(count - 1)[1]
    assert patch.entry(count - 2)[1] == offset
    patch.cut(count - 1)
    patch.save()
    found = view(store)
    assert (found.state, found.behind_bytes) == ("behind", 699705 - offset)


def test_the_last_record_may_have_its_keys_twice(store):
    """A repeated dispatch repeats them, as in RocketMQ; also after the first key alone."""
    patch = Patch(store, 4)
    count = patch.header()[5]
    offset = patch.entry(count - 1)[1]
    keys = [patch.entry(position)[:3] for position in (count - 2, count - 1)]
    assert [key[1] for key in keys] == [offset, offset]
    header = patch.header()
    for number, (code, _, seconds) in enumerate([keys[0], *keys]):
        previous = patch.slot(code % SLOTS)
        patch.put_entry(count + number, code, offset, seconds, previous)
        patch.put_slot(code % SLOTS, count + number)
    patch.put_header(*header[:5], count + 3)
    patch.save()
    assert view(store).state == "equal"


def test_a_file_that_is_gone_is_a_difference(store):
    """Its keys are nowhere else."""
    index_file(store, 2).unlink()
    found = view(store)
    assert found.state == "different"
    assert any("keys of a record are missing" in difference for difference in found.differences)


def test_the_first_file_may_be_gone_with_its_records(store):
    """Retention removes it; if its records were still in the log, they would be missed."""
    index_file(store, 0).unlink()
    assert view(store).state == "different"
    begin = HEADER.unpack_from(index_file(store, 0).read_bytes())[2]
    for path in (store / "commitlog").iterdir():
        if int(path.name) + 69632 <= begin + 69632:
            path.unlink()
    assert view(store).state == "equal"


def test_a_slot_that_leads_astray_is_a_difference(store):
    """Keys of that slot are not found, and those of another are read in vain."""
    patch = Patch(store, 0)
    full = [number for number in range(SLOTS) if patch.slot(number)]
    patch.put_slot(full[0], patch.slot(full[1]))
    patch.save()
    found = view(store)
    assert found.state == "different"
    assert found.differences[0].startswith(f"slot leads astray: file={patch.path.name} slot={full[0]}")


def test_a_slot_that_was_lost_leaves_its_entries_unreachable(store):
    """They are in the file but belong to no chain."""
    patch = Patch(store, 0)
    slot = next(number for number in range(SLOTS) if patch.slot(number))
    head = patch.slot(slot)
    patch.put_slot(slot, 0)
    patch.save()
    found = view(store)
    assert f"entry is in 0 chains: file={patch.path.name} position={head}" in found.differences


def test_a_chain_that_skips_an_entry_is_a_difference(store):
    """The entry is in no chain, the next one in two."""
    patch = Patch(store, 0)
    last = patch.header()[5] - 1
    position = next(p for p in range(last, 0, -1) if patch.entry(p)[3] and patch.entry(patch.entry(p)[3])[3])
    skipped = patch.entry(position)[3]
    fields = patch.entry(position)
    fields[3] = patch.entry(skipped)[3]
    patch.put_entry(position, *fields)
    patch.save()
    assert f"entry is in 0 chains: file={patch.path.name} position={skipped}" in view(store).differences


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (0, "index file has another begin"),
        (1, "index file has another end"),
        (2, "index file has another range"),
        (3, "index file has another range"),
        (4, "index file counts other slots"),
    ],
)
def test_a_header_that_does_not_fit_is_a_difference(store, field, text):
    """Queries choose files by the header."""
    patch = Patch(store, 3)
    header = patch.header()
    header[field] += 5000
    patch.put_header(*header)
    patch.save()
    assert any(difference.startswith(text) for difference in view(store).differences)


@pytest.mark.parametrize("closed", [True, False])
def test_the_last_file_of_a_killed_writer_may_lack_what_leads_to_its_last_entry(store, closed):
    """RocketMQ writes the entry, then its slot, then the header; in a cleanly closed store all three agree."""
    patch = Patch(store, -1)
    header = patch.header()
    header[3] = patch.entry(header[5] - 3)[1]
    patch.put_header(*header)
    patch.save()
    if not closed:
        (store / "abort").touch()
    assert view(store).state == ("different" if closed else "equal")


def test_entries_behind_the_logs_end_are_stale(golden):
    """RocketMQ cuts the log and leaves them."""
    found = view(golden("crash-5.3") / "torn-after" / "store")
    assert (found.state, found.stale_count) == ("equal", 29)


@pytest.mark.parametrize("name", ["basic-4.9", "lmq-5.3", "ext-4.9", "transaction-4.9"])
def test_sizes_come_from_the_settings_or_else_from_the_bytes(golden_read_only, golden_about, name):
    """With and without the broker's own settings."""
    about = golden_about(name)["brokerSettings"]
    settings = Settings(max_hash_slot_num=about["maxHashSlotNum"], max_index_num=about["maxIndexNum"])
    store = golden_read_only(name) / "store"
    assert check_store(store, settings).views["index"].state == "equal"
    assert view(store).state == "equal"


def test_an_index_file_of_another_size_is_a_difference(store):
    """It was cut short; the other files' size is named."""
    path = index_file(store, 2)
    path.write_bytes(path.read_bytes()[:5000])
    found = view(store)
    assert found.state == "different"
    assert found.differences[0] == (
        f"index file has another size: file={path.name} size=5000 expected=8440 max_hash_slot_num=100 max_index_num=400"
    )


def test_sizes_that_nothing_shows_are_those_of_the_settings(store):
    """Then the files differ in size from the settings."""
    for number in range(4, 0, -1):
        index_file(store, number).unlink()
    path = index_file(store, 0)
    path.write_bytes(path.read_bytes()[:5000])
    found = view(store)
    assert found.state == "different"
    assert "size=5000 expected=420000040 max_hash_slot_num=5000000" in found.differences[0]


def test_an_index_with_tags_is_the_same(golden_read_only):
    """RocketMQ enters the tags of each record from 5.4.0 on."""
    found = view(golden_read_only("basic-5.5") / "store")
    assert (found.state, found.difference_count, found.behind_bytes) == ("equal", 0, 0)


@pytest.mark.parametrize("batch_size", [5, 40, 1000])
def test_versions_may_take_turns_at_an_index(golden, batch_size):
    """Records of an older version are in it without their tags, those of a newer one with them."""
    store = golden("basic-5.5") / "store"
    shutil.rmtree(store / "index")
    builder = IndexBuilder(store / "index", SLOTS, 400)
    for number, batch in enumerate(cut_into_batches(log_batch(store), itertools.repeat(batch_size))):
        builder.with_tags = number % 3 == 1
        builder.put(batch)
    builder.begin_force()(lambda: None)
    builder.close()
    found = view(store)
    assert (found.state, found.difference_count) == ("equal", 0)


def test_wrong_tags_are_a_difference(golden):
    """A record's keys are followed by its own tags, or by none."""
    store = golden("basic-5.5") / "store"
    patch = Patch(store, 0)
    last = next(at for at in range(2, 300) if patch.entry(at)[1] != patch.entry(at + 1)[1])
    code, *others = patch.entry(last)
    patch.put_entry(last, code ^ SLOTS, *others)
    patch.save()
    assert view(store).state == "different"


def test_a_check_gives_no_space_to_holes(memory_directory):
    """On a full tmpfs, a look at a hole through a mapping would end the process instead."""
    store = memory_directory / "store"
    with reput.open(store, mode="inline", max_hash_slot_num=50_000, max_index_num=100) as opened:
        opened.put(reput.Message("orders", b"a", keys=["k"]))
    path = index_file(store, 0)
    data = path.read_bytes()
    path.unlink()
    with path.open("wb") as file:
        # As a copy that leaves pages of zeros out.
        file.truncate(len(data))
        for at in range(0, len(data), mmap.PAGESIZE):
            page = data[at : at + mmap.PAGESIZE]
            if any(page):
                file.seek(at)
                file.write(page)
    before = path.stat().st_blocks
    assert check_store(store, load_store_settings(store).settings).views["index"].state == "equal"
    assert path.stat().st_blocks == before
