"""CopiedRun: records of a master's log, checked, as a copy appends them."""

from __future__ import annotations

import msgspec

from reput.store.log.log_scan import PlainRows
from reput.store.record.record_columns import RecordColumns

__all__ = ["CopiedRun"]


class CopiedRun(msgspec.Struct, frozen=True):
    """Whole records of one segment that lie one behind the other.

    Attributes:
        data: their bytes.
        begin: commit-log offset of the first one.
        blank: the bytes between the record before and the first one here, which begins a segment then.
        plain: what dispatchers get of them, if the kernel has made it.
        columns: of the same bytes; None: they have to be located.
    """

    data: memoryview
    begin: int
    blank: bytes
    plain: PlainRows | None
    columns: RecordColumns | None
