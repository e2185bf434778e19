"""The kernel: the costliest loops of puts, reads and dispatchers in compiled code, if ``reput-kernel`` is installed.

``REPUT_KERNEL`` in the environment decides, once in each process:

    auto        use the kernel if it is installed and fits; the default
    off         use Python alone
    require     use the kernel; without it, opening a store raises `ConfigError`

The two sides must agree on `PROTOCOL`: the names of the attributes that the kernel reads, and what its functions take
and return. The compiled path gives the same bytes and results as the Python path. What it does not support takes the
Python path.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Protocol, TypeAlias, overload

from reput.errors import ConfigError

__all__ = [
    "ADVICE",
    "INDEX_KEY_SIZE",
    "NOT_INSTALLED",
    "PROTOCOL",
    "VARIABLE",
    "AdmittedMessage",
    "JsonField",
    "Kernel",
    "KernelConsumer",
    "KernelHeldRecords",
    "KernelLock",
    "KernelPuts",
    "KernelReads",
    "KernelSends",
    "ReadRecords",
    "RecordMaker",
    "RingBarrier",
    "RingWords",
    "SendRequests",
    "ViewWords",
    "found_kernel",
    "kernel",
    "kernel_version",
]

# The variable of the environment.
VARIABLE = "REPUT_KERNEL"
MODES = ("auto", "off", "require")
# Counted up, here and in kernel/src/lib.rs, with every change that the other side would notice.
PROTOCOL = 15
MODULE = "reput_kernel"
# Bytes of a key between `Kernel.index_keys` and `Kernel.put_index_keys`.
INDEX_KEY_SIZE = 20
# A field of JSON objects: its name; what its values are, as `kernel/src/json_columns.rs` says; the fields in it.
JsonField: TypeAlias = "tuple[str, str, list[JsonField]]"
NOT_INSTALLED = "reput-kernel is not installed"
# The extra `reput[kernel]` would leave an installed kernel of another protocol alone.
ADVICE = "Install it with `pip install --upgrade reput reput-kernel`, or set REPUT_KERNEL=auto to go on without it."


class AdmittedMessage(Protocol):
    """A message that is checked, with its queue, for `KernelPuts.append_each`."""

    @property
    def queue_id(self) -> int:
        """The queue that was chosen."""

    @property
    def record_size(self) -> int:
        """Bytes of the record."""


class KernelPuts(Protocol):
    """The compiled puts of one appender. Each returns None, with nothing changed, for what takes the Python path."""

    def put(self, message: object) -> Any:
        """Put one message and return its result."""

    def put_batch(self, messages: list[Any]) -> list[Any] | None:
        """Put messages as one run and return their results."""

    def admit(self, message: object) -> AdmittedMessage | None:
        """Check a message for `append_each`, and choose its queue."""

    def append_each(self, batch: list[Any]) -> list[Any] | None:
        """Put admitted messages, each as a put of its own, and return their results."""

    def put_sent_batch(
        self, topic: str, queue_id: int, body: bytes, head: object, of_batch: bytes, added: bytes
    ) -> list[Any] | None:
        """Put the messages of a batch that a client sent, as one run, and return their results."""


class KernelHeldRecords(Protocol):
    """As `reput.process.frames.held_records`; the kernel's puts add to it without a call of Python."""

    end: int
    store_timestamp: int
    is_open: bool
    is_watched: bool

    def __len__(self) -> int:
        """Return how many records are held."""

    def may_follow(self, store_timestamp: int) -> bool:
        """Tell whether a record that is stored at this time follows soon enough to be held."""

    def add(self, records: Any) -> int:
        """Hold an `AppendedRecords` of one row, and return how many are held."""

    def pieces(self) -> list[Any]:
        """Return what is held, as one `AppendedRecords` for each segment."""

    def clear(self) -> None:
        """Hold nothing any more."""

    def release(self) -> None:
        """Let go of the ring's words."""


class SendRequests(Protocol):
    """Requests of one connection to store messages, in their order."""

    def frames(self) -> list[bytes]:
        """Return each frame without the word of its length."""


class KernelSends(Protocol):
    """The compiled path of a broker's requests to store messages, from their frames to those of the answers."""

    def take(self, data: memoryview, born_host: bytes) -> tuple[SendRequests, int] | None:
        """Return the whole requests that *data* begins with, and their bytes; None: the first takes the Python path."""

    def put(self, requests: list[SendRequests]) -> list[bytes] | None:
        """Put the messages as one run; return the frames of each one's answers. None: nothing has changed."""


class RecordMaker(Protocol):
    """Makes the objects of records that the kernel has read, as `checked_record` does."""


class ReadRecords(Protocol):
    """Records of a queue, each checked as a whole."""

    @property
    def end(self) -> int:
        """The queue offset behind the last unit that was looked at."""

    def __len__(self) -> int:
        """Return how many records there are."""

    def data(self) -> list[bytes]:
        """Return the bytes of each record."""

    def decoded(self, maker: RecordMaker) -> list[Any]:
        """Return the objects of the records."""

    def fetched(self, maker: RecordMaker) -> Iterator[tuple[int, Any]]:
        """Yield queue offset and object of each record, which is made when it is taken."""


class KernelLock(Protocol):
    """The lock of a consumer group, as `threading.RLock`; who acquires it finds what the kernel gave without it."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock, and write into the group's objects what the kernel gave and acknowledged."""

    def release(self) -> None:
        """Release the lock."""

    def __enter__(self) -> bool: ...

    def __exit__(self, *error: object) -> None: ...

    def abandon(self) -> None:
        """Let the kernel give nothing more, in a forked child."""


class KernelConsumer(Protocol):
    """The compiled path of one consumer. Any thread may call it."""

    def take(self) -> Any:
        """Return the next message, as `GroupMember.take`; None: the Python path has to look for one."""

    def acknowledge(self, record: object) -> bool:
        """Mark a message as done, as `GroupMember.acknowledge`; False: nothing has changed, and Python does it."""


class ViewWords(Protocol):
    """Where progress and generation of a view stand in memory that the group's processes share."""

    @property
    def members(self) -> Mapping[str, Any]:
        """The group's members when the places were looked up; they hold for no others."""

    def release(self) -> None:
        """Let go of the memory, which is closed then."""


class RingWords(Protocol):
    """8-byte words that other processes read and write, with what the ring uses of a memory view, and in order."""

    @property
    def readonly(self) -> bool:
        """Whether the words cannot be stored to."""

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> RingWords: ...

    def __setitem__(self, index: int, value: int) -> None: ...

    def tolist(self) -> list[int]:
        """Return the words."""

    def tobytes(self) -> bytes:
        """Return a copy of their bytes."""

    def release(self) -> None:
        """Let go of the memory."""


class RingBarrier(Protocol):
    """A full barrier with the interface of a lock."""

    def acquire(self, blocking: bool = True) -> bool:
        """Make all stores of this thread visible before its next load."""

    def release(self) -> None:
        """Do nothing."""


class KernelReads(Protocol):
    """The compiled reads of one reader in its writer's process. Any thread may call `get` and `query`."""

    def get(self, topic: object, queue_id: object, queue_offset: object, count_max: object) -> Any:
        """Return the result of a get of a kept queue; None: it takes the Python path. `query` does the same."""

    def query(self, topic: object, key: object, count_max: object, begin: object, end: object) -> list[Any] | None:
        """Return the records that have a key, in commit-log order."""

    def keep_queue(
        self,
        view: ViewWords,
        topic: str,
        queue_id: int,
        progress: int,
        generation: int,
        log_begin: int,
        deleted_at: int,
        bounds: tuple[int, int],
        file_size: int,
        prefix: str,
        topic_field: bytes,
    ) -> None:
        """Keep where a queue begins and ends, and the numbers that it follows from."""

    def keep_index(
        self,
        view: ViewWords,
        generation: int,
        log_begin: int,
        directory: str | os.PathLike[str],
        stamp: tuple[int, int],
        files: list[tuple[str, int, int]],
    ) -> None:
        """Keep the files of the index, newest first, each with its counts of slots and entries, and the numbers."""

    def close_file(self, path: str) -> None:
        """Give up what is kept of a file that is closed."""

    def forget(self) -> None:
        """Forget what was kept."""


class Kernel(Protocol):
    """The module ``reput_kernel``."""

    PROTOCOL: int
    __version__: str
    KernelPuts: Callable[..., KernelPuts]
    KernelReads: Callable[..., KernelReads]
    KernelConsumer: Callable[..., KernelConsumer]
    RecordMaker: Callable[..., RecordMaker]
    GroupLock: type[Any]
    HeldRecords: Callable[..., KernelHeldRecords]
    KernelSends: Callable[..., KernelSends]
    ViewWords: Callable[..., ViewWords]
    RingWords: Callable[[memoryview], RingWords]
    RingBarrier: Callable[[], RingBarrier]

    def counts(self) -> dict[str, int]:
        """Return how many messages of this process the kernel has taken, by the way they came."""

    def index_keys(self, parts: Sequence[Any], with_tags: bool) -> tuple[bytes, bool] | None:
        """Return the keys of all rows of *parts*, `DispatchColumns`, and whether the last key is of the last row.

        A key has `INDEX_KEY_SIZE` bytes. None: they take the Python path. `queue_units` does the same.
        """

    def put_index_keys(
        self,
        memory: memoryview,
        slot_count: int,
        entry_count: int,
        header: object,
        keys: bytes,
        first: int,
        count: int,
    ) -> None:
        """Add *count* keys from number *first* on to a mapped index file, and bring its *header* up to them."""

    def queue_units(self, parts: Sequence[Any]) -> tuple[list[Any], int] | None:
        """Return (name, fields of `QueueUnits`) of each queue, and how many records stand in batch queues."""

    def join_frames(
        self, frames: list[bytes], bound: int, rows_max: int
    ) -> list[tuple[int, int, int, int, int, int, tuple[list[tuple[str, int]], bytes, bytes]]] | None:
        """Return the fields of *frames* decoded, and those of their columns; None: they take the Python path.

        Adjacent batches that end at or below the commit-log offset *bound* become one, until it has *rows_max* rows.
        """

    def read_queue(
        self,
        descriptors: dict[str, int],
        path: str,
        at: int,
        count: int,
        queue_offset: int,
        codes: frozenset[int] | None,
        count_max: int,
        bytes_max: int,
        log_min: int,
        own_from: int,
        queue_id: int,
        topic_field: bytes,
        segment_at: Callable[[int], Any],
    ) -> ReadRecords | None:
        """Return records of *count* units of a queue's file, all checked; None: they take the Python path.

        Those whose tags code is one of *codes* are wanted, up to *count_max* and *bytes_max*; the first always fits.
        """

    def log_rows(
        self, data: bytes | memoryview, commit_log_offset: int, verify: bool, with_properties: bool
    ) -> tuple[list[tuple[str, int]], bytes, bytes, int, int] | None:
        """Return queues, rows and texts of the plain records that *data* begins with, their end, the last store time.

        None: the first record is not plain.
        """

    def locate_records(
        self, data: bytes | bytearray | memoryview, commit_log_offset: int
    ) -> tuple[bytes, bytes, int] | None:
        """Return headers and numbers of the whole records that *data* begins with, and where they end.

        The headers end before the first host. The numbers are of 8 bytes, little-endian, each kind of all records
        behind the other: `NUMBERS` of `record_columns.py`. None: they take the Python path.
        """

    def first_bad_record(self, data: bytes | bytearray | memoryview, positions: bytes) -> int | None:
        """Return the number of the first record in *data* without its CRC, -1: all have it; None: take the Python path.

        *positions* are where they begin, 8 bytes each, little-endian.
        """

    def property_values(
        self, data: bytes | bytearray | memoryview, places: bytes, sizes: bytes, name: bytes
    ) -> tuple[bytes | None, bytes, bytes, int] | None:
        """Return the values of the property *name* of records in *data*, as an Arrow array of strings.

        These are its validity, offsets and data, and how many are null. *places* and *sizes* of the records' properties
        have 8 bytes each, little-endian. None: they take the Python path.
        """

    def json_columns(
        self, fields: Sequence[JsonField], data: Any, offsets: Any, texts: Any
    ) -> tuple[tuple[Any, ...], int] | None:
        """Return a column for each of *fields* from JSON bodies that lie in *data* behind one another, and the size of
        their texts, which are written to *texts*, memory of the size of the bodies. None: take the Python path.

        *offsets* are where the bodies begin and where the last one ends, 4 bytes each, little-endian. A column has the
        first two buffers of an Arrow array, where its texts begin in *texts*, and the columns in it.
        """

    def message_ids(self, results: Sequence[Any]) -> str:
        """Return the ids of these results, joined by commas."""


def kernel() -> Kernel | None:
    """Return the kernel; None: this process takes the Python path.

    Raises:
        ConfigError: REPUT_KERNEL asks for a kernel that cannot be used, or has another value than it may have.
    """
    mode = os.environ.get(VARIABLE) or "auto"
    if mode not in MODES:
        raise ConfigError(
            f"the variable of the environment has an unknown value: {VARIABLE}={mode!r}",
            f"Use one of {', '.join(MODES)}.",
        )
    if mode == "off":
        return None
    found, reason = found_kernel()
    if found is None and mode == "require":
        raise ConfigError(f"the kernel cannot be used: {reason} {VARIABLE}={mode}", ADVICE)
    return found


def kernel_version() -> str | None:
    """Return the version of the kernel that this process uses; None: it takes the Python path.

    Raises:
        ConfigError: as `kernel`.
    """
    found = kernel()
    return None if found is None else found.__version__


@cache
def found_kernel() -> tuple[Kernel | None, str]:
    """Return the installed kernel, or None and why it cannot be used."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None, f"it needs an interpreter with the global lock: python={sys.version.split()[0]} free-threaded"
    try:
        # Untyped: it may not be there.
        module: Any = importlib.import_module(MODULE)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == MODULE:
            return None, NOT_INSTALLED
        # Among others: a second interpreter of one process, or half of the package is missing.
        return None, f"reput-kernel cannot be loaded: error={error}"
    protocol = getattr(module, "PROTOCOL", None)
    if protocol != PROTOCOL:
        return None, f"reput-kernel is of another version: protocol={protocol} wanted={PROTOCOL}"
    return module, ""
