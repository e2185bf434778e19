"""Maintenance of a lake: small files merged, orphans removed. The rows stay the same, whatever is killed meanwhile."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime

import pyarrow as pa
from deltalake import DeltaTable, WriterProperties
from deltalake.exceptions import CommitFailedError

from reput_plugins.spark_export.lake_location import LakeLocation
from reput_plugins.spark_export.parquet_files import COMPRESSION_LEVEL

__all__ = ["Maintenance", "dates_to_compact"]

TARGET_SIZE = 128 << 20
SMALL_SIZE = 8 << 20
# An open day is merged only now and then: its files are small because they are new.
SMALL_FILES_OF_OPEN_DAY_MAX = 64


class Maintenance:
    """Looks after one lake, at most every *interval_ms*."""

    def __init__(
        self,
        lake: LakeLocation,
        *,
        interval_ms: int,
        vacuum_hours: int,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.lake = lake
        self.interval_seconds = interval_ms / 1000
        self.vacuum_hours = vacuum_hours
        self.now = now
        self.done_at = now()

    def due(self) -> bool:
        """Tell whether it is time to look again."""
        return self.interval_seconds > 0 and self.now() - self.done_at >= self.interval_seconds

    def run(self, alive: Callable[[], None]) -> int:
        """Merge what is small and remove what is nobody's; return how many files went. *alive* is called in between."""
        self.done_at = self.now()
        removed = 0
        today = datetime.fromtimestamp(self.now(), UTC).date()
        for day in dates_to_compact(self.lake.table(), today):
            alive()
            try:
                metrics = self.lake.table().optimize.compact(
                    partition_filters=[("date", "=", day)],
                    target_size=TARGET_SIZE,
                    writer_properties=WriterProperties(compression="ZSTD", compression_level=COMPRESSION_LEVEL),
                )
            except CommitFailedError:
                # Somebody else merged or deleted in the same day. What is left to do is found the next time.
                continue
            removed += int(metrics["numFilesRemoved"])
        alive()
        if self.vacuum_hours:
            # Files that a running batch has written are nobody's yet; they are far younger.
            removed += len(
                self.lake.table().vacuum(
                    retention_hours=self.vacuum_hours, dry_run=False, enforce_retention_duration=False, full=True
                )
            )
        return removed


def dates_to_compact(table: DeltaTable, today: date) -> list[str]:
    """Return the days, as text, of which a topic has files that are worth merging."""
    sizes: dict[tuple[str | None, date], list[int]] = defaultdict(list)
    actions = pa.table(table.get_add_actions(flatten=True))
    columns = (actions[name].to_pylist() for name in ("partition.topic", "partition.date", "size_bytes"))
    for topic, day, size in zip(*columns, strict=True):
        if day is not None:
            sizes[topic, day].append(size)
    return sorted({day.isoformat() for (_, day), found in sizes.items() if worth_merging(found, day < today)})


def worth_merging(sizes: Iterable[int], closed: bool) -> bool:
    """Tell whether the files of one topic and day are worth merging; *closed*: no more of them will come."""
    found = list(sizes)
    small = sum(size < SMALL_SIZE for size in found)
    if not closed:
        return small > SMALL_FILES_OF_OPEN_DAY_MAX
    return len(found) > 1 and (small > 0 or sum(size < TARGET_SIZE // 2 for size in found) > 1)
