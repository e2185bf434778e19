"""Frames that were read together, decoded; batches that go on where the one before ends come as one.

A put of one message makes a frame of one row, and a dispatcher reads hundreds of them at once. What each is made of is
let go here, while the processor has it at hand, and is no work for those who take the batch:

    frames   │ a: 1 row │ a: 1 row │ b: 1 row │ a: 64 rows │ topic deleted │ a: 1 row │ …
    decoded  │ queues a, b: 67 rows                        │ topic deleted │ queue a: …
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from reput.process.frames.frame import BATCH, Frame, decode_frame
from reput.store.writer.publisher import renumber_rows
from reput_hooks import DispatchColumns

__all__ = ["decode_frames"]

# Readers see the end of a frame when all of it is dispatched. Its last batch may take it above that.
JOINED_ROWS_MAX = 512
UNKNOWN: list[int] = []


class EncodedColumns(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """`DispatchColumns` whose queues, mostly those of the frame before, are not decoded."""

    queues: msgspec.Raw
    rows: bytes
    texts: bytes


class EncodedFrame(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A `Frame` with `EncodedColumns`."""

    kind: int
    epoch: int
    begin: int
    end: int
    end_store_timestamp: int
    ordinal: int
    columns: EncodedColumns


decode_encoded = msgspec.msgpack.Decoder(EncodedFrame).decode
decode_queues = msgspec.msgpack.Decoder(list[tuple[str, int]]).decode
# What is before the first frame: no batch goes on behind it.
NOTHING = EncodedFrame(-1, 0, 0, 0, 0, 0, EncodedColumns(msgspec.Raw(), b"", b""))


class Numbering:
    """Numbers the queues of joined frames in the order in which they come."""

    __slots__ = ("known", "numbers")

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, int], int] = {}
        self.known: dict[bytes, list[int] | None] = {}

    def numbers_of(self, queues: msgspec.Raw) -> list[int] | None:
        """Return the numbers of a frame's *queues*; None: they are those that its rows have already."""
        data = bytes(queues)
        numbers = self.known.get(data, UNKNOWN)
        if numbers is UNKNOWN:
            numbers = [self.numbers.setdefault(queue, len(self.numbers)) for queue in decode_queues(data)]
            if numbers == list(range(len(numbers))):
                numbers = None
            self.known[data] = numbers
        return numbers


def decode_frames(frames: Sequence[bytes], bound: int) -> list[Frame]:
    """Return *frames* with those joined that end at or below the commit-log offset *bound*."""
    if len(frames) == 1:
        # There is nothing to join, and somebody may wait for just this one.
        return [decode_frame(frames[0])]
    decoded: list[Frame] = []
    first = last = NOTHING
    numbering, numbers = Numbering(), None
    rows: list[bytes] = []
    texts: list[bytes] = []
    for data in frames:
        frame = decode_encoded(data)
        columns = frame.columns
        if (
            frame.begin == last.end
            and frame.end <= bound
            and frame.kind == BATCH == first.kind
            and frame.epoch == first.epoch
            and frame.ordinal - first.ordinal < JOINED_ROWS_MAX
        ):
            if columns.queues != last.columns.queues:
                numbers = numbering.numbers_of(columns.queues)
            if numbers is None:
                rows.append(columns.rows)
            else:
                rows.append(renumber_rows(columns.rows, numbers))
            texts.append(columns.texts)
        else:
            if first is not NOTHING:
                decoded.append(joined_frame(first, last, numbering, rows, texts))
            first = frame
            numbering = Numbering()
            numbers = numbering.numbers_of(columns.queues)
            rows, texts = [columns.rows], [columns.texts]
        last = frame
    if first is not NOTHING:
        decoded.append(joined_frame(first, last, numbering, rows, texts))
    return decoded


def joined_frame(
    first: EncodedFrame, last: EncodedFrame, numbering: Numbering, rows: list[bytes], texts: list[bytes]
) -> Frame:
    """Return the frame that goes from *first* to *last*."""
    columns = DispatchColumns(list(numbering.numbers), b"".join(rows), b"".join(texts))
    return Frame(first.kind, first.epoch, first.begin, last.end, last.end_store_timestamp, first.ordinal, columns)
