"""The chain of a slot: a long one is read thousands of entries at a time, and a broken one is an error."""

from __future__ import annotations

import random

import pytest

from reput.store.index.index_chain import BrokenChain, read_chain
from reput.store.index.index_layout import ENTRY, HEADER, SLOT, IndexHeader

SLOTS = 3
COUNT = 100_000
WANTED = 4
OTHER = 7
BEGIN_MS = 1_700_000_000_000
FOR_EVER = (1 << 63) - 1
ENTRIES_AT = HEADER.size + SLOT.size * SLOTS


class File:
    """An index file in memory: the wanted hash, another one of its slot, and one of another slot, in random order."""

    def __init__(self) -> None:
        chosen = random.Random(1).choices((WANTED, OTHER, 2), (4, 1, 1), k=COUNT)
        newest = [0] * SLOTS
        entries = bytearray(ENTRY.size)
        for number, code in enumerate(chosen, 1):
            entries += ENTRY.pack(code, number * 100, number // 10, newest[code % SLOTS])
            newest[code % SLOTS] = number
        self.header = IndexHeader(BEGIN_MS, BEGIN_MS + COUNT * 100, 100, COUNT * 100, 2, COUNT + 1)
        self.data = bytearray(HEADER.size) + b"".join(map(SLOT.pack, newest)) + entries
        self.offsets = [number * 100 for number, code in enumerate(chosen, 1) if code == WANTED][::-1]
        self.reads = 0

    def read(self, size: int, at: int) -> bytes:
        self.reads += 1
        return bytes(self.data[at : at + size])

    def found(self, begin: int = 0, end: int = FOR_EVER) -> list[int]:
        chain = read_chain(self.read, SLOTS, WANTED, self.header, begin, end)
        return [offset for offset in chain if offset is not None]

    def change(self, number: int, field: int, value: int) -> None:
        """Set one field of an entry."""
        fields = list(ENTRY.unpack_from(self.data, ENTRIES_AT + ENTRY.size * number))
        fields[field] = value
        ENTRY.pack_into(self.data, ENTRIES_AT + ENTRY.size * number, *fields)


@pytest.fixture(scope="module")
def written() -> bytes:
    """Return the bytes of the file, which take a while to generate."""
    return bytes(File().data)


@pytest.fixture
def file(written) -> File:
    made = File.__new__(File)
    made.data, made.reads = bytearray(written), 0
    made.header = IndexHeader(BEGIN_MS, BEGIN_MS + COUNT * 100, 100, COUNT * 100, 2, COUNT + 1)
    codes = [ENTRY.unpack_from(written, ENTRIES_AT + ENTRY.size * number)[0] for number in range(1, COUNT + 1)]
    made.offsets = [number * 100 for number, code in enumerate(codes, 1) if code == WANTED][::-1]
    return made


def test_a_long_chain_takes_few_reads(file):
    """The result is the same as entry by entry."""
    assert file.found() == file.offsets
    assert file.reads < 20


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("begin", [0, BEGIN_MS, BEGIN_MS + 3_000_000, BEGIN_MS + 9_990_000])
@pytest.mark.parametrize("end", [BEGIN_MS, BEGIN_MS + 10_000, BEGIN_MS + 5_000_000, FOR_EVER])
def test_times_leave_out_the_same_however_much_is_read_at_once(file, begin, end):
    """The oldest of many messages are found without reading each newer one."""
    expected = [offset for offset in file.offsets if begin <= BEGIN_MS + offset // 100 // 10 * 1000 <= end]
    assert file.found(begin, end) == expected
    told = list(read_chain(file.read, SLOTS, WANTED, file.header, begin, end))
    assert (None in told) == (len(expected) < len(file.offsets) and (end < FOR_EVER or begin > BEGIN_MS))


def test_a_short_chain_reads_little(file):
    """The entries of a scattered chain are read almost one by one."""
    sizes = []

    def read(size: int, at: int) -> bytes:
        sizes.append(size)
        return file.read(size, at)

    chain = read_chain(read, SLOTS, WANTED, file.header, 0, FOR_EVER)
    assert [next(chain) for _ in range(3)] == file.offsets[:3]
    assert max(sizes) <= 16 * ENTRY.size


@pytest.mark.slow
@pytest.mark.newest_python
@pytest.mark.parametrize("place", [0, 5, 20_000, 60_000])
@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        (0, 2, "to one of another slot"),
        (0, -4, "to one of another slot"),
        (1, FOR_EVER, "contradicts the header or the entry before it"),
        (1, -1, "contradicts the header or the entry before it"),
        (2, -1, "contradicts the header or the entry before it"),
        (3, COUNT, "does not lead back"),
        (3, -1, "does not lead back"),
    ],
)
def test_a_broken_entry_is_named_wherever_it_stands(file, place, field, value, what):
    """Entries before it in the chain are returned."""
    number = file.offsets[place] // 100
    file.change(number, field, value)
    found = []
    with pytest.raises(BrokenChain, match=f"{what}.*: .*entry={number}"):
        found += read_chain(file.read, SLOTS, WANTED, file.header, 0, FOR_EVER)
    assert found == file.offsets[:place]


def test_a_slot_that_leads_nowhere_is_named(file):
    """There is no entry with a number below 0."""
    SLOT.pack_into(file.data, HEADER.size + SLOT.size * (WANTED % SLOTS), -1)
    with pytest.raises(BrokenChain, match="a slot leads nowhere: slot=1 entry=-1"):
        file.found()


def test_a_file_that_ends_before_an_entry_is_no_end_of_the_chain(file):
    """It was cut short."""
    del file.data[ENTRIES_AT + ENTRY.size * 10 :]
    with pytest.raises(EOFError):
        file.found()
