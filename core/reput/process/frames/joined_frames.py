"""decode_frames: decodes frames that were read together, and joins adjacent batches into one.

A put of one message makes a frame of one row, and a dispatcher reads hundreds of them at once. The objects of each
frame are freed here, while they are in the processor's cache, so that readers of the batch need not do it:

    frames   │ a: 1 row │ a: 1 row │ b: 1 row │ a: 64 rows │ topic deleted │ a: 1 row │ …
    decoded  │ queues a, b: 67 rows                        │ topic deleted │ queue a: …
"""

from __future__ import annotations

import msgspec

from reput.kernel import Kernel
from reput.process.frames.frame import BATCH, Frame, decode_frame
from reput.store.writer.publisher import renumber_rows
from reput_hooks import DispatchColumns

__all__ = ["decode_frames"]

# Readers see a frame only when all of it is dispatched. The last joined batch may exceed this number.
JOINED_ROWS_MAX = 512
UNKNOWN: list[int] = []


class EncodedColumns(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """`DispatchColumns` with undecoded queues, which mostly equal those of the previous frame."""

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
# Placeholder before the first frame: no batch continues it.
NOTHING = EncodedFrame(-1, 0, 0, 0, 0, 0, EncodedColumns(msgspec.Raw(), b"", b""))


class Numbering:
    """Numbers the queues of joined frames in order of appearance."""

    __slots__ = ("known", "numbers")

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, int], int] = {}
        self.known: dict[bytes, list[int] | None] = {}

    def numbers_of(self, queues: msgspec.Raw) -> list[int] | None:
        """Return the numbers of a frame's *queues*; None: its rows already have these numbers."""
        data = bytes(queues)
        numbers = self.known.get(data, UNKNOWN)
        if numbers is UNKNOWN:
            numbers = [self.numbers.setdefault(queue, len(self.numbers)) for queue in decode_queues(data)]
            if numbers == list(range(len(numbers))):
                numbers = None
            self.known[data] = numbers
        return numbers


def decode_frames(frames: list[bytes], bound: int, used: Kernel | None) -> list[Frame]:
    """Return *frames* decoded; those that end at or below the commit-log offset *bound* are joined.

    Args:
        used: the kernel, which joins frames without an object for each.
    """
    if len(frames) == 1:
        # There is nothing to join, and a reader may wait for this frame.
        return [decode_frame(frames[0])]
    joined = used.join_frames(frames, bound, JOINED_ROWS_MAX) if used is not None else None
    if joined is not None:
        return [
            Frame(kind, epoch, begin, end, end_store_timestamp, ordinal, DispatchColumns(*columns))
            for kind, epoch, begin, end, end_store_timestamp, ordinal, columns in joined
        ]
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
    """Return the frame that spans *first* to *last*."""
    columns = DispatchColumns(list(numbering.numbers), b"".join(rows), b"".join(texts))
    return Frame(first.kind, first.epoch, first.begin, last.end, last.end_store_timestamp, first.ordinal, columns)
