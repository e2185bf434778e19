"""Files and Clock: what the store asks of the operating system, so that a simulator can stand in for it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from reput_hooks.durable_file import named, replace_durably

__all__ = ["Buffer", "Clock", "Files", "Mapping", "Progress", "WrittenFile", "untold"]

COPY_SIZE = 1 << 20

MADV_POPULATE_WRITE = 23
MLOCK_ONFAULT = 1
SYNC_FILE_RANGE_WRITE = 2
# Errors that concern the data being written.
REFUSALS = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
# How file systems and kernels say that they know no files without a name.
NO_NAMELESS_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
# The call returns once its data is on disk. Some C libraries that Python is built with lack the flag.
WRITE_FORCED = getattr(os, "RWF_DSYNC", 0)
# How file systems and kernels say that they do not: gVisor's, for one, and Linux before 4.7.
NO_FORCED_WRITES = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
# Files that one thread has open at a time to force them together.
FORCES_TOGETHER_MAX = 64
# The calling thread forces up to this many paths. More are forced by several threads: the file system serves all calls
# that wait at a time with one commit of its journal and one flush of the disk's cache, so that with 32 threads a path
# costs a third of what it costs alone. (`syncfs` costs a twelfth, but also waits for the writes of every other program,
# and some kernels and file systems do not report its errors.) But 32 threads that wake at once keep the processors for
# milliseconds: with 1,000 queues in use, 2 in 100 messages reached their consumer 5 ms later.
FORCES_BY_ONE_THREAD_MAX = 2048
FORCING_THREADS = 32
# So many paths are the work of one of them before it reports progress.
FORCES_PER_PART = 8
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


# Is called whenever a part of a long piece of work is done.
Progress = Callable[[], None]


def untold() -> None:
    """Report the progress to nothing."""


def parts_of(paths: Sequence[Path], size: int) -> list[Sequence[Path]]:
    """Return *paths* in parts of *size*."""
    return [paths[at : at + size] for at in range(0, len(paths), size)]


class Clock:
    """The time, in the units that the store uses."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970 UTC; it may jump."""
        return time.time_ns() // 1_000_000

    # Seconds that never go back. Each put calls it twice, so this is the function itself, without a wrapper.
    monotonic: Callable[[], float] = staticmethod(time.monotonic)

    def boot_id(self) -> str | None:
        """Return the name of the machine's present start, from which `monotonic` counts; None where it has none.

        Between two moments of one start no power was cut: what was written is there, forced or not.
        """
        try:
            return BOOT_ID.read_text().strip()
        except OSError:
            return None


class Mapping:
    """One file mapped whole, readable and writable, with its descriptor.

    ``memory`` is the mapping as plain bytes; wider fields are packed first and then assigned as a slice.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        self.descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self.mapped = mmap.mmap(self.descriptor, size)
        except BaseException as error:
            os.close(self.descriptor)
            if isinstance(error, OSError):
                named(error, path)
            raise
        self.memory = memoryview(self.mapped)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.mapped))

    def reserve(self, at: int, size: int) -> None:
        """Reserve disk space for these bytes, so that writing them cannot fail for lack of room.

        Raises:
            OSError: ENOSPC if the disk is full.
        """
        try:
            os.posix_fallocate(self.descriptor, at, size)
        except OSError as error:
            raise named(error, self.path) from None

    def populate(self, at: int, size: int) -> None:
        """Have these pages in memory before they are written; no harm where the kernel cannot.

        Through ctypes, because `mmap.madvise` keeps the interpreter lock while the kernel clears pages.
        """
        populate_pages(self.address, at, size)

    def write(self, data: memoryview, at: int) -> None:
        """Write all of *data* by position. Through the mapping the kernel would fetch each page first.

        Raises:
            OSError: a part of *data* may have been written.
        """
        written = 0
        while written < len(data):
            written += os.pwrite(self.descriptor, data[written:], at + written)

    def write_forced(self, data: bytes | bytearray | memoryview, at: int) -> None:
        """Write all of *data* by position and force it to disk; no other writes are forced.

        One system call if the system supports it: after each call, a computing thread may hold the interpreter lock for
        another 5 ms.

        Raises:
            OSError: a part of *data* may have been written, perhaps without reaching the disk.
        """
        written = 0
        try:
            while WRITE_FORCED and written < len(data):
                written += os.pwritev(self.descriptor, [data[written:]], at + written, WRITE_FORCED)
        except OSError as error:
            if error.errno not in NO_FORCED_WRITES:
                raise named(error, self.path) from None
        if written < len(data):
            self.write(memoryview(data)[written:], at + written)
            self.force()

    def lock(self) -> None:
        """Keep all pages in memory until the mapping is closed.

        Raises:
            OSError: the process may not lock so much.
        """
        if mlock(ctypes.c_void_p(self.address), ctypes.c_size_t(len(self.mapped))):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(self.path))

    def force(self) -> None:
        """Force the file's bytes to disk. `os.fdatasync` lets other threads run, `mmap.flush` does not."""
        try:
            os.fdatasync(self.descriptor)
        except OSError as error:
            raise named(error, self.path) from None

    def has_name(self) -> bool:
        """Tell whether the file is still in a directory; otherwise its bytes are lost when it is closed."""
        return os.fstat(self.descriptor).st_nlink > 0

    def close(self) -> None:
        """Unmap and close; a view that is still in use keeps the memory until it is dropped."""
        self.memory.release()
        # Where a reader's view lives on, the mapping goes with it.
        with contextlib.suppress(BufferError):
            self.mapped.close()
        os.close(self.descriptor)


class Buffer:
    """Memory of this process alone, all zero at first. It takes room page by page, as it is written or populated."""

    def __init__(self, size: int) -> None:
        self.mapped = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.memory = memoryview(self.mapped)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.mapped))

    def populate(self, at: int, size: int) -> None:
        """Have these pages there before they are written; no harm where the kernel cannot."""
        populate_pages(self.address, at, size)

    def lock(self) -> None:
        """Keep in memory each page that was once written, until the buffer is closed.

        Raises:
            OSError: the process may not lock so much.
        """
        if mlock2(ctypes.c_void_p(self.address), ctypes.c_size_t(len(self.mapped)), MLOCK_ONFAULT):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def close(self) -> None:
        """Give the memory back."""
        self.memory.release()
        with contextlib.suppress(BufferError):
            self.mapped.close()


madvise = ctypes.CDLL(None).madvise
sync_file_range = ctypes.CDLL(None, use_errno=True).sync_file_range
mlock = ctypes.CDLL(None, use_errno=True).mlock
mlock2 = ctypes.CDLL(None, use_errno=True).mlock2


def populate_pages(address: int, at: int, size: int) -> None:
    """Have the pages of *size* bytes, *at* bytes behind *address*, in memory and writable."""
    begin = at - at % mmap.PAGESIZE
    madvise(ctypes.c_void_p(address + begin), ctypes.c_size_t(at + size - begin), MADV_POPULATE_WRITE)


def write_all(descriptor: int, data: bytes | bytearray | memoryview, at: int) -> None:
    """Write all of *data*.

    Raises:
        OSError: a part of *data* may have been written.
    """
    written = os.pwrite(descriptor, data, at)
    while written < len(data):
        written += os.pwrite(descriptor, data[written:], at + written)


class WrittenFile:
    """One file that is written by position, so that a full disk is an error of the write and no SIGBUS."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def read(self, size: int, at: int) -> bytes:
        """Return up to *size* bytes."""
        try:
            return os.pread(self.descriptor, size, at)
        except OSError as error:
            raise named(error, self.path) from None

    def write(self, data: bytes | bytearray | memoryview, at: int) -> None:
        """Write all of *data*.

        Raises:
            OSError: a part of *data* may have been written.
        """
        try:
            write_all(self.descriptor, data, at)
        except OSError as error:
            raise named(error, self.path) from None

    def used_ranges(self, at: int) -> Iterator[tuple[int, int]]:
        """Yield (begin, end) of each allocated range behind *at*; everything else reads as zero."""
        end = at
        while True:
            try:
                begin = os.lseek(self.descriptor, end, os.SEEK_DATA)
            except OSError:
                # ENXIO: only a hole up to the end.
                return
            end = os.lseek(self.descriptor, begin, os.SEEK_HOLE)
            yield begin, end

    def zero_behind(self, at: int) -> bool:
        """Have zeros from *at* to the file's end, and say whether there was anything else."""
        changed = False
        for begin, end in self.used_ranges(at):
            for position in range(begin, end, COPY_SIZE):
                size = min(COPY_SIZE, end - position)
                zeros = bytes(size)
                if self.read(size, position) != zeros:
                    self.write(zeros, position)
                    changed = True
        return changed

    def begin_force(self) -> None:
        """Start write-back of the file's dirty pages without waiting; `force` reports the outcome.

        Raises:
            OSError: the disk refuses. On a kernel without the call this does nothing.
        """
        if sync_file_range(self.descriptor, ctypes.c_int64(0), ctypes.c_int64(0), SYNC_FILE_RANGE_WRITE):
            number = ctypes.get_errno()
            if number in REFUSALS:
                raise OSError(number, os.strerror(number), str(self.path))

    def force(self) -> None:
        """Force the file's bytes to disk."""
        try:
            os.fdatasync(self.descriptor)
        except OSError as error:
            raise named(error, self.path) from None

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.descriptor)


class Files:
    """The file calls of the writer. Every one raises OSError as the system does, with the file's name."""

    def create(self, path: Path, size: int, data: bytes = b"") -> None:
        """Make a sparse file of *size* bytes, *data* and then zeros, which must not exist yet.

        It has its size and its data before it has its name: RocketMQ 4 refuses a store in which a file is too short,
        and both versions take the zeros at the begin of a queue's last file for a unit.
        """
        try:
            descriptor = os.open(path.parent, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o644)
            nameless = True
        except OSError as error:
            if error.errno not in NO_NAMELESS_FILES:
                raise
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            nameless = False
        try:
            os.ftruncate(descriptor, size)
            if data:
                write_all(descriptor, data, 0)
            if nameless:
                # With a directory to start from, though the path is absolute: only then Python has the link followed.
                os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)
        except OSError as error:
            # The link's error names the path that represents the descriptor.
            error.filename = None
            raise named(error, path) from None
        finally:
            os.close(descriptor)

    def map(self, path: Path, size: int) -> Mapping:
        """Map a file of *size* bytes."""
        return Mapping(path, size)

    def open(self, path: Path) -> WrittenFile:
        """Open a file that exists, to be written by position."""
        return WrittenFile(path)

    def make_directory(self, path: Path) -> None:
        """Make *path* and its parents, where they are missing."""
        path.mkdir(parents=True, exist_ok=True)

    def force_directory(self, path: Path) -> None:
        """Force the names in *path* to disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise named(error, path) from None
        finally:
            os.close(descriptor)

    def force_together(
        self, files: Sequence[Path], directories: Sequence[Path], on_progress: Progress = untold
    ) -> None:
        """Force many *files*, and then the names in *directories*, to disk.

        *on_progress* is called in this thread after each part.

        Raises:
            OSError: one of them was refused. Which of the others were done is not known.
        """
        works = ((self.force_files, files), (self.force_directories, directories))
        if len(files) + len(directories) <= FORCES_BY_ONE_THREAD_MAX:
            for force, paths in works:
                for part in parts_of(paths, FORCES_TOGETHER_MAX):
                    force(part)
                    on_progress()
            return
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(FORCING_THREADS, "reput-force") as pool:
            try:
                for force, paths in works:
                    parts = parts_of(paths, FORCES_PER_PART)
                    try:
                        done: Iterator[None] = pool.map(force, parts)
                    except RuntimeError:
                        # The program ends, or the system has no thread for it.
                        done = map(force, parts)
                    for _ in done:
                        on_progress()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def force_files(self, files: Sequence[Path]) -> None:
        """Force the bytes of a few files, all of which are open at a time."""
        with ExitStack() as opened:
            group: list[WrittenFile] = []
            for path in files:
                group.append(self.open(path))
                opened.callback(group[-1].close)
            # Data written before the first force goes into the same commit of the file system's journal. Otherwise
            # each file has its own commit, and writes to other files wait for some of these commits.
            for file in group:
                file.begin_force()
            for file in group:
                file.force()

    def force_directories(self, directories: Sequence[Path]) -> None:
        """Force the names in a few directories."""
        for directory in directories:
            self.force_directory(directory)

    def replace(self, path: Path, data: bytes) -> None:
        """Replace a small file durably, as a whole."""
        replace_durably(path, data)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def remove_directory(self, path: Path) -> None:
        """Remove a directory that is empty."""
        path.rmdir()

    def move(self, source: Path, target: Path) -> None:
        """Rename a file, durably, to a place on the same file system."""
        source.rename(target)
        self.force_directory(target.parent)
        self.force_directory(source.parent)

    def resize(self, path: Path, size: int) -> None:
        """Give a file *size* bytes; those that it did not have are zero."""
        os.truncate(path, size)
