"""The dispatch ring: bytes from one writer to many reader processes over shared memory, and their numbers back.

The writer hands every frame to all readers at once and waits for none. A reader that was too slow finds out that it was
lapped; nothing is lost, because the commit log can be read again. Knows no message: a frame is bytes.

In the owner of the store::

    memory = RingMemory.create()                              # ring, cells and eventfds, without names
    writer = RingWriter(memory, appended=…, durable=…, commit_log_offset_min=…, epoch=…, ordinal=…)
    progress = ProgressWaiter(memory)
    Popen(supervisor, pass_fds=memory.descriptors)            # in this order; never with preexec_fn
    writer.publish(frame, appended, ordinal)                  # the caller holds its put lock
    writer.set_durable(offset)                                # the flusher
    progress.wait(slot, offset, timeout) -> WaitOutcome       # any thread; `await wait_async` in any event loop
    memory.view(slot).progress                                # any number of any cell, at any time
    writer.close(); progress.close(); memory.close()

In the supervisor, and in the dispatcher that it forks::

    memory = RingMemory.from_descriptors(numbers)             # read-only, but for the cells that it opens
    cell = memory.open_cell(slot); cell.clear(name); cell.set_state(…); cell.set_pid(…)
    if os.fork() == 0:
        cell = memory.confine(slot)                           # first of all: the only page it may write from here on
        reader = RingReader(memory, cell)
        position, appended = reader.join()                    # read the commit log up to `appended`, then frames
        frames = reader.read()                                # RingLapped: join() again, the log has what lies between
        cell.set_progress(offset, ordinal)                    # wakes the waiters
        reader.watch(control); ready = reader.park(0.1)       # after read() returned nothing

**Access.** Only the creator maps the ring writable, a seal refuses it to all others; a dispatcher maps its
own page of the cells writable and all others read-only. A stray write faults in the process that makes it.

**Words** are 8 bytes, aligned, and touched only through ``memoryview.cast("Q")``, which is one load or one store. Wider
fields are packed into bytes first and assigned as a slice, never packed in place: `struct.pack_into` zeroes its target
before it writes, and readers in other processes see that.

**Order.** On x86-64 stores become visible in the order in which they were made, loads happen in theirs; only a load may
overtake an earlier store of the same processor to another place. Hence:

- The writer stores intent, frame, `appended`, tail. A reader loads the tail, copies, and loads the intent: a byte that
  was overwritten while it was copied was announced by an intent that the reader then finds. Checking before copying
  would accept torn frames.
- Where one stores what the other loads and the other way round - tail and parked flag, what is held and parked flag,
  progress and what is awaited, what is awaited and whether the dispatcher rests - both pass a full barrier between
  their store and their load. It is a `threading.Lock` of their own, acquired without blocking and released. In CPython
  3.11 to 3.13 that is a semaphore of the C library, and disassembled, ``sem_trywait`` and ``sem_post`` each pass a
  ``lock cmpxchg``, before which the processor makes all its stores visible. Mutexes would not do, so
  `sys.thread_info.lock` is looked at when a ring is made.

The tests run these protocols through all interleavings under this memory model, and find the fault in each variant
that lacks a step. Elsewhere than on x86-64 Linux the ring refuses to be made.

**Errors**: `RingError` for wrong use, `RingClosed` after the writer closed the ring, `RingLapped` as above.
"""

from reput.ring.cell import Cell, CellCounter, CellView, DurableCursor
from reput.ring.processor import refuse_unproved_processor
from reput.ring.progress import ProgressWaiter, WaitOutcome
from reput.ring.ring_header import RingHeader
from reput.ring.ring_memory import RingMemory
from reput.ring.ring_reader import Joined, RingReader
from reput.ring.ring_writer import RingWriter

__all__ = [
    "Cell",
    "CellCounter",
    "CellView",
    "DurableCursor",
    "Joined",
    "ProgressWaiter",
    "RingHeader",
    "RingMemory",
    "RingReader",
    "RingWriter",
    "WaitOutcome",
    "refuse_unproved_processor",
]
