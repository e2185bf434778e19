"""Positions of the ring's words. Constants only; the package's docstring has the access rules.

The ring's memfd, in 8-byte machine words. Only the writer stores here, all others map it read-only::

    word  name                       meaning
       0  MAGIC                      RING_MAGIC, stored last when the ring is made
       1  VERSION                    RING_VERSION
       2  CAPACITY                   bytes of the data area, a power of two
       3  SLOT_COUNT                 dispatchers that fit
       4  RING_ID                    random; new at each start of a writer
       8  TAIL                       position behind the last whole frame
       9  INTENT                     position up to which the writer may be overwriting; INTENT >= TAIL
      10  APPENDED                   commit-log offset up to which records are readable
      11  ORDINAL                    records in the log since its birth, up to APPENDED
      12  ANNOUNCED                  TAIL for which all parked readers were woken
      13  HELD                       1: records wait to be published together; a parking reader asks for them
      16  DURABLE                    commit-log offset up to which the log is forced to disk
      17  DURABLE_ANNOUNCED          DURABLE for which all waiters were woken
      18  COMMIT_LOG_OFFSET_MIN      first byte of the log that still exists
      19  EPOCH                      number of the log's history
      20  CLOSED                     1: no more frames
      21  OWNER_BACKSTOP_COUNT       back-stop wake-ups in the owner that found work; each one is a bug
      64  AWAITED, one per slot      smallest progress that the owner waits for, NEVER: none
     128  ASKED_NS, one per slot     CLOCK_MONOTONIC when the owner last asked for the slot's progress
     512  data                       CAPACITY bytes

TAIL to HELD share a cache line: publishing moves one line to the readers' processor and back.

A frame lies in the data area at ``position % CAPACITY``, 8-byte aligned, and may wrap around its end::

    at  size          field
     0  8             frame size in bytes, without this word and without the padding
     8  frame size    the frame
        0 to 7        padding, undefined

The cells' memfd holds one page per slot. A dispatcher's process maps its own page writable and all pages read-only.
The supervisor writes the words marked S, both while the dispatcher runs and after its death; the dispatcher writes the
others::

    byte  name                       meaning
       0  PARKED                     odd: parked for frames. Grows for ever, so each parking has a new number
       8  DURABLE_AWAITED            smallest DURABLE that ends the wait, NEVER: not waiting for it
      16  PREDECESSORS_AWAITED       bit per slot whose progress ends the wait, 0: none
      24  PROGRESS_AWAITED           their progress that ends the wait
      32  RESTING                    1: lets frames accumulate; a new waiter for its progress wakes it
      64  STATE                      S  number of the state, as `reput.process` defines it
      72  STATE_SINCE                S  milliseconds since 1970 UTC
      80  PID                        S
      88  RESTART_COUNT              S
      96  GENERATION                 of the view: grows when another one replaces it, or when files are removed with a
                                     deleted topic; S while no process runs
     128  PROGRESS                   commit-log offset up to which the view is readable
     136  PROGRESS_ANNOUNCED         PROGRESS for which all waiters were woken
     144  ORDINAL_DISPATCHED         records since the log's birth, up to PROGRESS
     152  BATCH_COUNT                calls of `dispatch`
     160  HEARTBEAT_NS               CLOCK_MONOTONIC of the last heartbeat
     168  PHASE                      number of the current phase, as `reput.process` defines it
     176  LAPPED_COUNT               times the writer overwrote unread frames
     184  BACKSTOP_COUNT             back-stop wake-ups that found work; each one is a bug
     192  GAP_BYTES                  bytes of the log that retention removed before they were dispatched
     200  REJECTED_COUNT             records in the dead-letter file
     208  COUNTER_COUNT              named counters in use
     216  BATCH_RECORD_COUNT         records of the batch being dispatched, or of the last one
     224  BATCH_SIZE                 bytes of the log that this batch covers
     256  durable cursor             seqlock of 24 bytes: commit-log offset, epoch, store timestamp
     336  name                       S  seqlock of up to 64 bytes, UTF-8
     512  counter values             32 signed words
     768  counter names              32 of 24 bytes, UTF-8, padded with zeros
    1536  last error                 seqlock of up to 1264 bytes, UTF-8; S after the dispatcher's death

A *seqlock* holds bytes that belong together and are always read whole, even if the writer dies while writing::

    at  size          field
     0  8             sequence: number of writes, 0: never written
     8  8 + capacity  copy for even sequences: size, bytes
        8 + capacity  copy for odd sequences

The writer fills the copy that is not in use and stores the sequence last. A reader takes the copy that the sequence
selects, and accepts it if the sequence is unchanged afterwards.

An unknown word holds UNKNOWN, never 0.
"""

from __future__ import annotations

import mmap

__all__ = [
    "ANNOUNCED",
    "APPENDED",
    "ASKED_NS",
    "AWAITED",
    "BACKSTOP_COUNT",
    "BATCH_COUNT",
    "BATCH_RECORD_COUNT",
    "BATCH_SIZE",
    "CAPACITY",
    "CAPACITY_DEFAULT",
    "CAPACITY_MIN",
    "CELL_SIZE",
    "CELL_WORDS",
    "CLOSED",
    "COMMIT_LOG_OFFSET_MIN",
    "COUNTERS_MAX",
    "COUNTER_COUNT",
    "COUNTER_NAMES_AT",
    "COUNTER_NAME_SIZE_MAX",
    "COUNTER_VALUES",
    "CURSOR_AT",
    "CURSOR_SIZE",
    "DURABLE",
    "DURABLE_ANNOUNCED",
    "DURABLE_AWAITED",
    "EPOCH",
    "ERROR_AT",
    "ERROR_SIZE_MAX",
    "FRAME_SHARE",
    "GAP_BYTES",
    "GENERATION",
    "HEADER_SIZE",
    "HEADER_WORDS",
    "HEARTBEAT_NS",
    "HELD",
    "INTENT",
    "LAPPED_COUNT",
    "MAGIC",
    "NAME_AT",
    "NAME_SIZE_MAX",
    "NEVER",
    "ORDINAL",
    "ORDINAL_DISPATCHED",
    "OWNER_BACKSTOP_COUNT",
    "PARKED",
    "PHASE",
    "PID",
    "PREDECESSORS_AWAITED",
    "PROGRESS",
    "PROGRESS_ANNOUNCED",
    "PROGRESS_AWAITED",
    "REJECTED_COUNT",
    "RESTART_COUNT",
    "RESTING",
    "RING_ID",
    "RING_MAGIC",
    "RING_VERSION",
    "SLOTS_DEFAULT",
    "SLOTS_MAX",
    "SLOT_COUNT",
    "STATE",
    "STATE_SINCE",
    "TAIL",
    "UNKNOWN",
    "VERSION",
    "WORD_SIZE",
    "seqlock_size",
]

WORD_SIZE = 8
UNKNOWN = 2**64 - 1
NEVER = 2**64 - 1

# The ring's header, in words.
RING_MAGIC = int.from_bytes(b"reputRNG", "big")
RING_VERSION = 3

MAGIC = 0
VERSION = 1
CAPACITY = 2
SLOT_COUNT = 3
RING_ID = 4
TAIL = 8
INTENT = 9
APPENDED = 10
ORDINAL = 11
ANNOUNCED = 12
HELD = 13
DURABLE = 16
DURABLE_ANNOUNCED = 17
COMMIT_LOG_OFFSET_MIN = 18
EPOCH = 19
CLOSED = 20
OWNER_BACKSTOP_COUNT = 21
AWAITED = 64
ASKED_NS = 128
HEADER_WORDS = 512
HEADER_SIZE = HEADER_WORDS * WORD_SIZE

# A word has one bit for each slot.
SLOTS_MAX = 64
SLOTS_DEFAULT = 32
CAPACITY_DEFAULT = 8 << 20
CAPACITY_MIN = 4096
# Largest share of the capacity for one frame: a frame of the whole capacity would lap every reader at once.
FRAME_SHARE = 4

# A cell, in words of its page.
# A page, so that a process can be given write access to one cell alone; some kernels for ARM have pages of 64 KiB.
CELL_SIZE = max(4096, mmap.PAGESIZE)
CELL_WORDS = CELL_SIZE // WORD_SIZE

PARKED = 0
DURABLE_AWAITED = 1
PREDECESSORS_AWAITED = 2
PROGRESS_AWAITED = 3
RESTING = 4
STATE = 8
STATE_SINCE = 9
PID = 10
RESTART_COUNT = 11
GENERATION = 12
PROGRESS = 16
PROGRESS_ANNOUNCED = 17
ORDINAL_DISPATCHED = 18
BATCH_COUNT = 19
HEARTBEAT_NS = 20
PHASE = 21
LAPPED_COUNT = 22
BACKSTOP_COUNT = 23
GAP_BYTES = 24
REJECTED_COUNT = 25
COUNTER_COUNT = 26
BATCH_RECORD_COUNT = 27
BATCH_SIZE = 28
COUNTER_VALUES = 64

# The wider fields of a cell, in bytes.
CURSOR_AT = 256
CURSOR_SIZE = 24
NAME_AT = 336
NAME_SIZE_MAX = 64
COUNTERS_MAX = 32
COUNTER_NAMES_AT = 768
COUNTER_NAME_SIZE_MAX = 24
ERROR_AT = 1536
ERROR_SIZE_MAX = 1264


def seqlock_size(capacity: int) -> int:
    """Return the size of a seqlock for *capacity* bytes."""
    return WORD_SIZE + 2 * (WORD_SIZE + capacity)


assert AWAITED + SLOTS_MAX <= ASKED_NS
assert ASKED_NS + SLOTS_MAX <= HEADER_WORDS
assert TAIL // 8 == HELD // 8, "one cache line"
assert CAPACITY_MIN & (CAPACITY_MIN - 1) == 0
assert CURSOR_AT >= (BATCH_SIZE + 1) * WORD_SIZE
assert CURSOR_AT + seqlock_size(CURSOR_SIZE) <= NAME_AT
assert NAME_AT + seqlock_size(NAME_SIZE_MAX) <= COUNTER_VALUES * WORD_SIZE
assert COUNTER_NAMES_AT >= (COUNTER_VALUES + COUNTERS_MAX) * WORD_SIZE
assert ERROR_AT >= COUNTER_NAMES_AT + COUNTERS_MAX * COUNTER_NAME_SIZE_MAX
assert ERROR_AT + seqlock_size(ERROR_SIZE_MAX) <= CELL_SIZE
assert all(size % WORD_SIZE == 0 for size in (CURSOR_SIZE, NAME_SIZE_MAX, ERROR_SIZE_MAX))
