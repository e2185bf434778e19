"""Which writers put through the kernel: those without hooks, and without a transient pool."""

from __future__ import annotations

from reput.errors import StoreError
from reput.kernel import KernelPuts, kernel
from reput.store.disk.files import Clock
from reput.store.log.commit_log import CommitLog
from reput.store.log.group_commit_log import GroupCommitLog
from reput.store.record.message import Message, PutMessageResult, PutMessageStatus
from reput.store.writer.publisher import AppendedRecords
from reput.store.writer.topic_table import Topic

__all__ = ["kernel_puts"]


def kernel_puts(appender: object, commit_log: CommitLog, clock: Clock) -> KernelPuts | None:
    """Return the compiled puts of *appender*; None: it takes the Python path.

    The log of a transient pool takes the Python path.

    Raises:
        ConfigError: REPUT_KERNEL asks for a kernel that cannot be used.
    """
    found = kernel()
    if found is None or type(commit_log) not in (CommitLog, GroupCommitLog):
        return None
    told = None if type(clock) is Clock else clock
    return found.KernelPuts(
        appender, Message, Topic, PutMessageResult, AppendedRecords, PutMessageStatus.PUT_OK, StoreError, told
    )
