"""Frames that were read together are decoded and joined."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from reput.kernel import found_kernel
from reput.process.frames.frame import (
    BATCH,
    DELETE_TOPIC,
    EXPIRE,
    batch_frame,
    decode_frame,
    delete_topic_frame,
    expire_frame,
)
from reput.process.frames.joined_frames import JOINED_ROWS_MAX, decode_frames
from reput_hooks import DispatchBatch, DispatchColumns
from reput_hooks.dispatch import ROW

SIZE = 100
EVERYTHING = 1 << 40


def frame_of(first, queues, *, begin=None, epoch=1):
    """Return the frame of one record for each of *queues*, beginning with record *first* of the log."""
    names = list(dict.fromkeys(queues))
    rows = []
    for number, queue in enumerate(queues, first):
        texts_size = len(str(number))
        rows.append(
            ROW.pack(
                number * SIZE,
                number,
                7,
                1000 + number,
                0,
                SIZE,
                names.index(queue),
                0,
                texts_size,
                -1,
                texts_size,
                -1,
                -1,
            )
        )
    texts = "".join(str(number) for number in range(first, first + len(queues))).encode()
    end = first + len(queues)
    columns = DispatchColumns(names, b"".join(rows), texts)
    return batch_frame(epoch, first * SIZE if begin is None else begin, end * SIZE, 999 + end, first, columns)


def requests(frames):
    """Return the requests in *frames*."""
    return [request for frame in frames for request in frame.columns]


@pytest.fixture(params=["kernel", "python"])
def decode(request):
    """Return `decode_frames` with the kernel, or without it."""
    used, reason = found_kernel() if request.param == "kernel" else (None, "")
    if request.param == "kernel" and used is None:
        pytest.skip(reason)
    return partial(decode_frames, used=used)


A, B, C = ("orders", 0), ("orders", 1), ("bills" * 40, 70_000)


@pytest.mark.parametrize(
    "queues",
    [
        [[A], [A], [A], [A]],
        [[A], [B], [A], [C], [B]],
        [[A, A, B], [B], [B, A], [C], [A, B]],
    ],
)
def test_frames_that_go_on_come_as_one(decode, queues):
    """Whatever queue numbers the frames use, every record keeps its queue and its texts."""
    frames = []
    first = 3
    for each in queues:
        frames.append(frame_of(first, each))
        first += len(each)
    (joined,) = decode(frames, EVERYTHING)
    apart = [decode_frame(frame) for frame in frames]
    assert list(joined.columns) == requests(apart)
    assert [request.topic for request in joined.columns] == [topic for each in queues for topic, _ in each]
    assert (joined.kind, joined.begin, joined.end) == (BATCH, 3 * SIZE, first * SIZE)
    assert (joined.ordinal, joined.end_ordinal) == (3, first)
    assert joined.end_store_timestamp == apart[-1].end_store_timestamp
    assert len(set(joined.columns.queues)) == len(joined.columns.queues)
    rows, names, _ = DispatchBatch(0, None, [joined.columns]).columns()
    assert [names[number] for number in rows["queue_index"]] == [queue for each in queues for queue in each]


def test_changes_and_holes_stand_between(decode):
    """A deletion is passed on at its place; missed frames, a new epoch and the bound of visible records end a batch."""
    frames = [
        frame_of(0, [A]),
        frame_of(1, [A]),
        delete_topic_frame(1, 2 * SIZE, 2, "orders"),
        frame_of(2, [A]),
        expire_frame(1, SIZE),
        frame_of(4, [A]),
        frame_of(5, [A], epoch=2),
        frame_of(6, [A], epoch=2),
        frame_of(7, [A], epoch=2),
    ]
    decoded = decode(frames, 7 * SIZE)
    assert [(frame.kind, frame.begin // SIZE, frame.end // SIZE) for frame in decoded] == [
        (BATCH, 0, 2),
        (DELETE_TOPIC, 2, 2),
        (BATCH, 2, 3),
        (EXPIRE, 1, 1),
        (BATCH, 4, 5),
        (BATCH, 5, 7),
        (BATCH, 7, 8),
    ]
    assert decoded[1].columns.queues == [("orders", 0)]
    assert requests(decoded) == requests([decode_frame(frame) for frame in frames if decode_frame(frame).kind == BATCH])


def test_a_blank_at_the_end_of_a_segment_belongs_to_the_frame_behind_it(decode):
    """That frame begins where the previous one ended."""
    (joined,) = decode([frame_of(0, [A]), frame_of(3, [A], begin=SIZE)], EVERYTHING)
    assert (joined.begin, joined.end) == (0, 4 * SIZE)
    assert [request.commit_log_offset for request in joined.columns] == [0, 3 * SIZE]


def test_frames_are_not_joined_without_end(decode):
    """Readers see the end of a frame only when all of it is dispatched."""
    decoded = decode([frame_of(number, [A]) for number in range(2 * JOINED_ROWS_MAX + 1)], EVERYTHING)
    assert [len(frame.columns) for frame in decoded] == [JOINED_ROWS_MAX, JOINED_ROWS_MAX, 1]


def test_nothing_is_made_of_nothing(decode):
    """A read may find no frame."""
    assert decode([], EVERYTHING) == []


def test_what_is_no_frame_is_refused_alike(decode):
    """A reader whose frame was not written by this writer stops, with the kernel as without."""
    whole = frame_of(0, [A])
    for broken in (b"", b"\xc0", whole[:-1], whole + b"\0", whole[:1] + b"\xa1x" + whole[2:]):
        with pytest.raises(msgspec.MsgspecError):
            decode([whole, broken], EVERYTHING)
