"""The dispatch ring: frames from one writer to many reader processes over shared memory, and their progress back.

The writer publishes every frame to all readers at once and waits for none. A reader that is too slow detects that it
was lapped; nothing is lost, because it can read the commit log instead. The ring knows no messages: a frame is bytes.

In the owner of the store::

    memory = RingMemory.create()                              # ring, cells and eventfds, without names
    writer = RingWriter(memory, appended=…, durable=…, commit_log_offset_min=…, epoch=…, ordinal=…)
    progress = ProgressWaiter(memory)
    channel.send_descriptors(setup, memory.descriptors)       # to the supervisor, in this order
    writer.publish(frame, appended, ordinal)                  # the caller holds its put lock
    writer.set_durable(offset)                                # the flusher
    progress.wait(slot, offset, timeout) -> WaitOutcome       # any thread; `await wait_async` in any event loop
    memory.view(slot).progress                                # any value of any cell, at any time
    writer.close(); progress.close(); memory.close()

In the supervisor, and in the dispatcher that it forks::

    memory = RingMemory.from_descriptors(numbers)             # read-only, except for the cells that it opens
    cell = memory.open_cell(slot); cell.clear(name); cell.set_state(…); cell.set_pid(…)
    if os.fork() == 0:
        cell = memory.confine(slot)                           # first of all: from here on it can write only this page
        reader = RingReader(memory, cell)
        position, appended = reader.join()                    # read the commit log up to `appended`, then frames
        frames = reader.read()                                # RingLapped: join() again, and read the log in between
        cell.set_progress(offset, ordinal)                    # wakes the waiters
        reader.watch(control); ready = reader.park(0.1)       # after read() returned nothing

**Access.** Only the creator maps the ring writable; a seal prevents all other writable mappings. A dispatcher maps its
own page of the cells writable and all others read-only. A stray write faults in the process that makes it.

**Words** are 8 bytes, aligned, and touched only through `word_access`, each by one load or one store: on x86-64 those
of ``memoryview.cast("Q")``, on aarch64 those of the kernel (`reput.kernel.RingWords`). Wider fields are packed into
bytes first and assigned as a slice, never packed in place: `struct.pack_into` zeroes its target before it writes, and
readers in other processes see that.

**Order.** On x86-64, stores become visible in program order, and loads happen in program order; only a load may
overtake an earlier store of the same processor to a different address. Stores and loads of the kernel's words keep this
order on aarch64 as well, also with the bytes that are written and copied between them. Hence:

- The writer stores intent, frame, `appended`, tail. A reader loads the tail, copies, and loads the intent: if a byte
  was overwritten while it was copied, the intent that the reader then loads announces it. Checking before copying
  would accept torn frames.
- Some pairs of words are stored by one side and loaded by the other, in both directions: tail and parked flag, held
  flag and parked flag, progress and awaited progress, awaited progress and resting flag. Both sides then pass a full
  barrier between their store and their load: on aarch64 the kernel's `RingBarrier`, which is a fence; on x86-64 a
  private `threading.Lock`, acquired without blocking and released. In CPython 3.11 to 3.13 that is a semaphore of the C
  library; its disassembly shows that ``sem_trywait`` and ``sem_post`` each pass a ``lock cmpxchg``, before which the
  processor makes all its stores visible. A mutex would not be a barrier, so creating a ring checks
  `sys.thread_info.lock`.

The tests run these protocols through all interleavings under this memory model, and detect the fault in each variant
that omits a step. ``kernel/model`` runs the steps that depend on the order through loom, under the memory model of
Rust; with acquire and release alone it finds torn frames. Elsewhere than on Linux, and on other processors, the ring
cannot be created.

**Errors**: `RingError` for wrong use, `RingClosed` after the writer closed the ring, `RingLapped` as above.
"""

from reput.ring.cell import Cell, CellCounter, CellView, DurableCursor
from reput.ring.progress import ProgressWaiter, WaitOutcome
from reput.ring.ring_header import RingHeader
from reput.ring.ring_memory import RingMemory
from reput.ring.ring_reader import Joined, RingReader
from reput.ring.ring_writer import RingWriter
from reput.ring.word_access import word_access

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
    "word_access",
]
