"""The ring's protocols as programs for `interleavings.explore`, step for step as in `core/reput/ring`.

The steps that make a program correct are its arguments, so that a test can omit one.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from ring.interleavings import Choose, Fence, Load, Operation, Program, Signal, Sleep, Store, Take

__all__ = [
    "HOLD_WORDS",
    "NEVER",
    "PROGRESS_WORDS",
    "RING_WORDS",
    "SEQLOCK_WORDS",
    "SUCCESSOR_WORDS",
    "Steps",
    "asking_reader",
    "holding_writer",
    "owner_waiting",
    "predecessor",
    "progress_publisher",
    "ring_reader",
    "ring_writer",
    "seqlock_reader",
    "seqlock_writer",
    "successor",
]

NEVER = 99
Steps_ = Generator[Operation, Any, None]


@dataclass(frozen=True)
class Steps:
    """The steps of the ring's protocol; each can be omitted.

    Attributes:
        writer_barrier: between the tail and reading the parked flag.
        reader_barrier: between the parked flag and the last read of the tail.
        last_look: the reader checks the tail once more after it has set its parked flag.
        intent: the writer announces what it will overwrite.
        check_after_copy: the reader checks the intent after copying, not before.
        numbered_parking: each parking has a new number, even if the reader's process is replaced.
        appended_first: the writer stores `appended` before the tail, and a joining reader loads it after the tail.
        blame_while_parked: a reader whose back-stop expired checks for a missing wake-up while its flag is still set.
        backward: both sides copy from the last word to the first, as memcpy may.
        deaths: how often the reader's process may die while parked, and be restarted.
        timeouts: how often the back-stop may expire.
    """

    writer_barrier: bool = True
    reader_barrier: bool = True
    last_look: bool = True
    intent: bool = True
    check_after_copy: bool = True
    numbered_parking: bool = True
    appended_first: bool = True
    blame_while_parked: bool = True
    backward: bool = False
    deaths: int = 0
    timeouts: int = 0


# The ring: two frames of two words fit. Frame n holds n in both words and advances the log to 10 n.
CAPACITY = 4
FRAME = 2
RING_WORDS = {"INTENT": 0, "TAIL": 0, "APPENDED": 0, "ANNOUNCED": 0, "PARKED": 0, "D0": 0, "D1": 0, "D2": 0, "D3": 0}


def ring_writer(frame_count: int, steps: Steps) -> Program:
    """`RingWriter.publish`, *frame_count* times."""

    def program() -> Steps_:
        number = tail = seen = 0
        while number < frame_count:
            number += 1
            end = tail + FRAME
            if steps.intent:
                yield Store("INTENT", end)
            at = 0
            while at < FRAME:
                word = tail + (FRAME - 1 - at if steps.backward else at)
                yield Store(f"D{word % CAPACITY}", number)
                at += 1
            if steps.appended_first:
                yield Store("APPENDED", 10 * number)
            yield Store("TAIL", end)
            if not steps.appended_first:
                yield Store("APPENDED", 10 * number)
            tail = end
            if steps.writer_barrier:
                yield Fence()
            parked = yield Load("PARKED")
            if parked != seen:
                seen = parked
                if parked & 1:
                    yield Signal("wake")
            yield Store("ANNOUNCED", end)

    return program


def ring_reader(frame_count: int, steps: Steps) -> Program:
    """`RingReader.read` and `park` until all frames were read or skipped, in a process that may die and restart."""
    last = frame_count * FRAME

    def program() -> Steps_:
        deaths = timeouts = position = parking = 0
        while position < last:
            # read
            tail = yield Load("TAIL")
            if tail != position:
                intent = 0
                if not steps.check_after_copy:
                    intent = yield Load("INTENT")
                copied: tuple[int, ...] = ()
                size = tail - position
                if size <= CAPACITY:
                    while len(copied) < size:
                        word = position + (size - 1 - len(copied) if steps.backward else len(copied))
                        value = yield Load(f"D{word % CAPACITY}")
                        copied = (*copied, value)
                    if steps.check_after_copy:
                        intent = yield Load("INTENT")
                if size > CAPACITY or intent - position > CAPACITY:
                    position = yield Load("TAIL")
                    appended = yield Load("APPENDED")
                    assert appended >= position // FRAME * 10, f"gap after joining: {appended=} {position=}"
                    continue
                copied = copied[::-1] if steps.backward else copied
                expected = tuple((position + at) // FRAME + 1 for at in range(size))
                assert copied == expected, f"torn: {copied=} {expected=}"
                position = tail
                continue
            # park
            parking += 1
            yield Store("PARKED", parking)
            if steps.reader_barrier:
                yield Fence()
            tail = position
            if steps.last_look:
                tail = yield Load("TAIL")
            woken = True
            if tail == position:
                if deaths < steps.deaths and (yield Choose(2)):
                    deaths += 1
                    # A new process finds the flag of the dead one, clears it, and joins.
                    parking = (yield Load("PARKED")) if steps.numbered_parking else 0
                    parking += parking & 1
                    yield Store("PARKED", parking)
                    position = yield Load("TAIL")
                    continue
                woken = yield Sleep("wake", timeouts < steps.timeouts)
                if woken:
                    # Edge-triggered: an event is reported once.
                    yield Take("wake")
            if not woken:
                timeouts += 1
                if steps.blame_while_parked:
                    announced = yield Load("ANNOUNCED")
                    woken = yield Take("wake")
                    assert woken or announced <= position, "a back-stop found work"
            parking += 1
            yield Store("PARKED", parking)
            if not woken and not steps.blame_while_parked:
                announced = yield Load("ANNOUNCED")
                woken = yield Take("wake")
                assert woken or announced <= position, "a back-stop found work"

    return program


# Holding: the writer publishes that it holds records, and the reader asks for them before it sleeps.
HOLD_WORDS = {"HELD": 0, "TAIL": 0, "PARKED": 0}


def holding_writer(record_count: int, *, barrier: bool = True) -> Program:
    """`HoldingPublisher.publish` of *record_count* records, and `ReleaseService`, which has the same lock."""

    def program() -> Steps_:
        number = tail = seen = 0
        while tail < record_count:
            if number < record_count:
                number += 1
                releases = False
                if number == tail + 1:
                    # After the first one every parking reader asks.
                    yield Store("HELD", 1)
                    if barrier:
                        yield Fence()
                    parked = yield Load("PARKED")
                    releases = parked != seen
                if not releases:
                    # The service may run between any two puts.
                    releases = yield Take("release")
            else:
                releases = yield Sleep("release")
                yield Take("release")
            if releases:
                yield Store("HELD", 0)
                tail = number
                yield Store("TAIL", tail)
                yield Fence()
                parked = yield Load("PARKED")
                if parked != seen:
                    seen = parked
                    if parked & 1:
                        yield Signal("wake")

    return program


def asking_reader(record_count: int, *, barrier: bool = True, asks: bool = True) -> Program:
    """`RingReader.read` and `park` until everything was read."""

    def program() -> Steps_:
        position = parking = 0
        while position < record_count:
            tail = yield Load("TAIL")
            if tail != position:
                position = tail
                continue
            parking += 1
            yield Store("PARKED", parking)
            if barrier:
                yield Fence()
            held = yield Load("HELD")
            if held and asks:
                yield Signal("release")
            tail = yield Load("TAIL")
            if tail == position:
                yield Sleep("wake")
                yield Take("wake")
            parking += 1
            yield Store("PARKED", parking)

    return program


# Progress: the owner publishes what it waits for, the dispatcher its progress.
PROGRESS_WORDS = {"PROGRESS": 0, "ANNOUNCED": 0, "AWAITED": NEVER}


def progress_publisher(last: int, *, barrier: bool = True) -> Program:
    """`Cell.set_progress` with 1 to *last*."""

    def program() -> Steps_:
        progress = 0
        while progress < last:
            progress += 1
            yield Store("PROGRESS", progress)
            if barrier:
                yield Fence()
            awaited = yield Load("AWAITED")
            if progress >= awaited:
                yield Signal("progress")
            yield Store("ANNOUNCED", progress)

    return program


def owner_waiting(
    targets: tuple[int, ...], *, barrier: bool = True, announced_first: bool = True, timeouts: int = 0
) -> Program:
    """`SlotGate`: waits for all *targets*, in ascending order, at the same time."""

    def program() -> Steps_:
        heap, armed, timed_out = targets, NEVER, 0
        while True:
            # _settle
            while True:
                while heap:
                    progress = yield Load("PROGRESS")
                    if progress < heap[0]:
                        break
                    heap = heap[1:]
                awaited = heap[0] if heap else NEVER
                if awaited == armed:
                    break
                armed = awaited
                yield Store("AWAITED", armed)
                if barrier:
                    yield Fence()
            if not heap:
                return
            # poll, serve
            woken = yield Sleep("progress", timed_out < timeouts)
            announced = 0
            if not woken:
                timed_out += 1
                if announced_first:
                    announced = yield Load("ANNOUNCED")
            signalled = yield Take("progress")
            if not woken and not announced_first:
                announced = yield Load("ANNOUNCED")
            assert signalled or announced < armed, "a back-stop found work"

    return program


# After: a dispatcher parks until a predecessor reaches an offset.
SUCCESSOR_WORDS = {"PROGRESS": 0, "MASK": 0, "OFFSET": 0}


def predecessor(last: int, *, barrier: bool = True) -> Program:
    """`Cell.set_progress` with 1 to *last*, for dispatchers that depend on it."""

    def program() -> Steps_:
        progress = 0
        while progress < last:
            progress += 1
            yield Store("PROGRESS", progress)
            if barrier:
                yield Fence()
            mask = yield Load("MASK")
            if mask:
                offset = yield Load("OFFSET")
                if progress >= offset:
                    yield Signal("wake")

    return program


def successor(targets: tuple[int, ...], *, barrier: bool = True) -> Program:
    """`RingReader.park` with predecessors, for each of *targets* in turn, in any order."""

    def program() -> Steps_:
        done = 0
        while done < len(targets):
            target = targets[done]
            progress = yield Load("PROGRESS")
            if progress >= target:
                done += 1
                continue
            yield Store("OFFSET", target)
            yield Store("MASK", 1)
            if barrier:
                yield Fence()
            progress = yield Load("PROGRESS")
            if progress < target:
                yield Sleep("wake")
            yield Store("MASK", 0)
            yield Take("wake")

    return program


# A seqlock of two words.
SEQLOCK_WORDS = {"SEQUENCE": 0, "A0": 0, "B0": 0, "A1": 0, "B1": 0}


def seqlock_writer(count: int, *, sequence_last: bool = True) -> Program:
    """`Seqlock.write` of 1 to *count*; the process may die before each store."""

    def program() -> Steps_:
        sequence = 0
        while sequence < count:
            sequence += 1
            copy = sequence & 1
            if not sequence_last:
                yield Store("SEQUENCE", sequence)
            if (yield Choose(2)):
                return
            yield Store(f"A{copy}", sequence)
            if (yield Choose(2)):
                return
            yield Store(f"B{copy}", sequence)
            if (yield Choose(2)):
                return
            if sequence_last:
                yield Store("SEQUENCE", sequence)

    return program


def seqlock_reader(count: int, *, second_look: bool = True) -> Program:
    """`Seqlock.read`, *count* times; its results are whole, and never older than earlier ones."""

    def program() -> Steps_:
        newest = done = 0
        while done < count:
            sequence = yield Load("SEQUENCE")
            if sequence == 0:
                done += 1
                continue
            copy = sequence & 1
            first = yield Load(f"A{copy}")
            second = yield Load(f"B{copy}")
            if second_look and (yield Load("SEQUENCE")) != sequence:
                continue
            assert first == second == sequence, f"torn: {sequence=} {first=} {second=}"
            assert sequence >= newest, f"older than before: {sequence=} {newest=}"
            newest = sequence
            done += 1

    return program
