"""Which writers put through the kernel: those whose log is a mapping, and that have no hooks."""

from __future__ import annotations

from reput.errors import StoreError
from reput.kernel import KernelPuts, kernel
from reput.store.disk.files import Clock
from reput.store.log.commit_log import CommitLog
from reput.store.record.message import Message, PutMessageResult, PutMessageStatus
from reput.store.writer.publisher import AppendedRecords

__all__ = ["kernel_puts"]


def kernel_puts(appender: object, commit_log: CommitLog, clock: Clock) -> KernelPuts | None:
    """Return the compiled puts of *appender*; None: it takes the Python path.

    Logs that gather messages in memory first, the transient pool's and that of SYNC_FLUSH, take the Python path.

    Raises:
        ConfigError: REPUT_KERNEL asks for a kernel that cannot be used.
    """
    found = kernel()
    if found is None or type(commit_log) is not CommitLog:
        return None
    told = None if type(clock) is Clock else clock
    return found.KernelPuts(
        appender, Message, PutMessageResult, AppendedRecords, PutMessageStatus.PUT_OK, StoreError, told
    )
