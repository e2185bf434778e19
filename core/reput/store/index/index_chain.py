"""The chain of one slot of an index file: from the newest entry of the slot back to its oldest.

    slot ──▶ entry 940 ──▶ entry 938 ──▶ entry 17 ──▶ 0
                └─ read ahead: entries of a key that comes often lie near each other

A chain only leads back, to entries of its own slot and of earlier records. Anything else is damage, of the entry or of
the slot or entry that led to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from reput.store.index.index_layout import ENTRY, HEADER, SLOT, IndexHeader

__all__ = ["BrokenChain", "read_chain"]

# Entries that are read at once: few, and more where one read was good for several.
SPAN_MIN = 16
SPAN_MAX = 1 << 16
SPAN_GROWTH = 8
OFFSET_MAX = (1 << 63) - 1


class BrokenChain(Exception):
    """The bytes of a slot or an entry are not what was written; the text says which, and why."""


def read_chain(
    read: Callable[[int, int], bytes], slot_count: int, wanted: int, header: IndexHeader, begin: int, end: int
) -> Iterator[int | None]:
    """Yield the commit-log offsets of the entries under a hash, newest first; None once if times leave one out.

    Args:
        read: (size, position in the file) → up to *size* bytes.
        wanted: the hash.
        header: read before; beside a live builder the slot may lead to entries that came after it.
        begin, end: store time in ms, both included.

    Raises:
        BrokenChain: the chain contradicts itself or the header.
        EOFError: the file ends before the slot, or before the end of one of the entries.
    """
    slot = wanted % slot_count
    entries_at = HEADER.size + SLOT.size * slot_count
    data = read(SLOT.size, HEADER.size + SLOT.size * slot)
    if len(data) < SLOT.size:
        raise EOFError
    (number,) = SLOT.unpack(data)
    if number < 0:
        raise BrokenChain(f"a slot leads nowhere: slot={slot} entry={number}")
    begin_timestamp, index_count = header.begin_timestamp, header.index_count
    begin_offset, end_offset = header.begin_offset, header.end_offset
    last_offset = OFFSET_MAX
    first, data, span, used = 0, b"", SPAN_MIN, 0
    is_told = False
    while number > 0:
        at = (number - first) * ENTRY.size
        if not 0 <= at < len(data):
            span = min(span * SPAN_GROWTH, SPAN_MAX) if used > 1 else max(span // SPAN_GROWTH, SPAN_MIN)
            if span == SPAN_MAX:
                # It loads numpy, which is worth it for a chain this long.
                from reput.store.index.index_span import follow_span
            first, used = max(number - span + 1, 1), 0
            at = (number - first) * ENTRY.size
            data = read(at + ENTRY.size, entries_at + ENTRY.size * first)
            if len(data) < at + ENTRY.size:
                raise EOFError
            if span == SPAN_MAX and last_offset < OFFSET_MAX:
                followed = follow_span(data, first, slot_count, wanted, header, last_offset, begin, end)
                if followed is not None:
                    yield from followed.offsets
                    if followed.is_over:
                        return
                    number, last_offset, used = followed.previous, followed.last_offset, followed.entry_count
                    data = b""
                    continue
        used += 1
        code, offset, seconds, previous = ENTRY.unpack_from(data, at)
        if code < 0 or code % slot_count != slot:
            raise BrokenChain(f"a slot or an entry leads to one of another slot: slot={slot} entry={number}")
        if not 0 <= previous < number:
            raise BrokenChain(f"an entry does not lead back: entry={number} previous={previous}")
        is_within = 0 <= offset <= last_offset and seconds >= 0
        if not is_within or (number < index_count and not begin_offset <= offset <= end_offset):
            raise BrokenChain(
                f"an entry contradicts the header or the entry before it: entry={number} commit_log_offset={offset} "
                f"seconds={seconds} begin_offset={begin_offset} end_offset={end_offset}"
            )
        timestamp = begin_timestamp + seconds * 1000
        if code == wanted:
            if begin <= timestamp <= end:
                yield offset
            elif not is_told:
                is_told = True
                yield None
        if timestamp < begin:
            return
        last_offset, number = offset, previous
