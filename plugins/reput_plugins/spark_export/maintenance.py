"""Maintenance of a lake: small files merged, orphans removed. The rows stay the same, whatever is killed meanwhile."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime

import pyarrow as pa
from deltalake import DeltaTable, WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError

from reput.errors import DispatcherError
from reput_plugins.spark_export.lake_location import LAKE_ADVICE, LakeLocation, one_line
from reput_plugins.spark_export.parquet_files import COMPRESSION_LEVEL

__all__ = ["Maintenance", "days_to_merge", "merged_size"]

VACUUM_HOURS = 168
TARGET_SIZE = 128 << 20
SMALL_SIZE = 8 << 20
# Of a day to which files are still added, files of about one size are merged when there are more of them than this. So
# there are never many, and a row is written again once for each of these sizes, not with every transaction.
ALIKE_FILES_MAX = 4
OPEN_DAY_SIZES = (1 << 20, 8 << 20, TARGET_SIZE)
# What an export writes, and what the Delta library makes of several files, or of one that rows are taken out of.
UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
OWN_FILE = re.compile(
    rf"topic=[^/]*/date=[^/]*/([0-9]{{20}}-[0-9]{{20}}(-[0-9a-f]{{8}}){{1,2}}|part-[0-9]{{5}}-{UUID}-c[0-9]{{3}}(\.\w+)?)"
    r"\.parquet"
)
# Transactions between two looks at what they have left.
COMMITS_BETWEEN_LOOKS = 8


class Maintenance:
    """Looks after one lake: at its files when some transactions have added to them, at all else every *interval_ms*."""

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
        self.commits = 0

    def after_commit(self, alive: Callable[[], None]) -> int:
        """Look after the lake if it is time; return how many files went."""
        if not self.interval_seconds:
            return 0
        self.commits += 1
        if self.due():
            return self.run(alive)
        return self.merge(alive) if self.commits >= COMMITS_BETWEEN_LOOKS else 0

    def due(self) -> bool:
        """Tell whether it is time to look again."""
        return self.now() - self.done_at >= self.interval_seconds

    def run(self, alive: Callable[[], None]) -> int:
        """Merge what is small and remove what reput wrote and nobody names; return how many files went.

        *alive* is called in between.

        Raises:
            DispatcherError: the lake cannot be written.
        """
        self.done_at = self.now()
        removed = self.merge(alive)
        alive()
        if self.vacuum_hours:
            with self.refusals():
                # Files that a running batch has written are nobody's yet; they are far younger.
                unused = self.lake.table().vacuum(
                    retention_hours=self.vacuum_hours, dry_run=True, enforce_retention_duration=False, full=True
                )
                # The library would take whatever else people keep in the folder, too.
                own = [name for name in unused if OWN_FILE.fullmatch(name)]
                self.lake.remove(own)
                removed += len(own)
        return removed

    def merge(self, alive: Callable[[], None]) -> int:
        """Merge small files; return how many went.

        Raises:
            DispatcherError: the lake cannot be written.
        """
        self.commits = removed = 0
        today = datetime.fromtimestamp(self.now(), UTC).date()
        for day, size in days_to_merge(self.lake.table(), today):
            alive()
            try:
                with self.refusals():
                    metrics = self.lake.table().optimize.compact(
                        partition_filters=[("date", "=", day)],
                        target_size=size,
                        writer_properties=WriterProperties(compression="ZSTD", compression_level=COMPRESSION_LEVEL),
                    )
            except CommitFailedError:
                # Somebody else merged or deleted in the same day. What is left to do is found the next time.
                continue
            removed += int(metrics["numFilesRemoved"])
        return removed

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Have what the Delta library cannot do meanwhile come out as one sentence.

        Raises:
            DispatcherError: the lake cannot be written.
            CommitFailedError: another transaction came first.
        """
        try:
            yield
        except CommitFailedError:
            raise
        except (OSError, DeltaError) as error:
            raise DispatcherError(
                f"the files of the lake cannot be merged: lake={self.lake.address} error={one_line(error)}", LAKE_ADVICE
            ) from None


def days_to_merge(table: DeltaTable, today: date) -> list[tuple[str, int]]:
    """Return the days, as text, of which a topic has files that are worth merging, and into files of which size."""
    sizes: dict[tuple[str | None, date], list[int]] = defaultdict(list)
    actions = pa.table(table.get_add_actions(flatten=True))
    columns = (actions[name].to_pylist() for name in ("partition.topic", "partition.date", "size_bytes"))
    for topic, day, size in zip(*columns, strict=True):
        if day is not None:
            sizes[topic, day].append(size)
    found = ((day, merged_size(files, day < today)) for (_, day), files in sizes.items())
    return sorted({(day.isoformat(), size) for day, size in found if size is not None})


def merged_size(sizes: Sequence[int], closed: bool) -> int | None:
    """Return up to which size files of one topic and day are worth merging, None if they are not.

    *closed*: no more of them will come.
    """
    if closed:
        small = sum(size < SMALL_SIZE for size in sizes)
        worth = len(sizes) > 1 and (small > 0 or sum(size < TARGET_SIZE // 2 for size in sizes) > 1)
        return TARGET_SIZE if worth else None
    for target in OPEN_DAY_SIZES:
        # Any two of them fit.
        if sum(size < target // 2 for size in sizes) > ALIKE_FILES_MAX:
            return target
    return None
