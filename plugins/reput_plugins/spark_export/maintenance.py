"""Maintenance of a lake: merge small files, remove orphans. The rows stay the same, even if a process is killed."""

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
# While a day still grows, files of about one size are merged when there are more of them than this. The number of
# files stays low, and a row is rewritten once for each of these sizes, not with every transaction.
ALIKE_FILES_MAX = 4
OPEN_DAY_SIZES = (1 << 20, 8 << 20, TARGET_SIZE)
# Names of files that an export writes, and that the Delta library writes when it merges files or deletes rows.
UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
OWN_FILE = re.compile(
    rf"([^/]+=[^/]*/)*([0-9]{{20}}-[0-9]{{20}}(-[0-9a-f]{{8}}){{1,2}}|part-[0-9]{{5}}-{UUID}-c[0-9]{{3}}(\.\w+)?)"
    r"\.parquet"
)
# Transactions between two searches for files to merge.
COMMITS_BETWEEN_LOOKS = 8


class Maintenance:
    """Maintain one lake: merge files after every few transactions, and do everything every *interval_ms*.

    *date_column* names the day of the store time, if the lake is partitioned by it.
    """

    def __init__(
        self,
        lake: LakeLocation,
        *,
        interval_ms: int,
        vacuum_hours: int,
        date_column: str = "date",
        now: Callable[[], float] = time.time,
    ) -> None:
        self.lake = lake
        self.interval_seconds = interval_ms / 1000
        self.vacuum_hours = vacuum_hours
        self.date_column = date_column
        self.now = now
        self.done_at = now()
        self.commits = 0

    def after_commit(self, alive: Callable[[], None]) -> int:
        """Maintain the lake if it is time; return the number of files removed."""
        if not self.interval_seconds:
            return 0
        self.commits += 1
        if self.due():
            return self.run(alive)
        return self.merge(alive) if self.commits >= COMMITS_BETWEEN_LOOKS else 0

    def due(self) -> bool:
        """Return whether the interval since the last run has passed."""
        return self.now() - self.done_at >= self.interval_seconds

    def run(self, alive: Callable[[], None]) -> int:
        """Merge small files and remove reput's orphans; return the number of files removed.

        *alive* is called between the steps.

        Raises:
            DispatcherError: the lake cannot be written.
        """
        self.done_at = self.now()
        removed = self.merge(alive)
        alive()
        if self.vacuum_hours:
            with self.refusals():
                # A running batch has files that no transaction names yet; they are far younger than the limit.
                unused = self.lake.table().vacuum(
                    retention_hours=self.vacuum_hours, dry_run=True, enforce_retention_duration=False, full=True
                )
                # The library would also remove unrelated files in the folder.
                own = [name for name in unused if OWN_FILE.fullmatch(name)]
                self.lake.remove(own)
                removed += len(own)
        return removed

    def merge(self, alive: Callable[[], None]) -> int:
        """Merge small files; return the number of files removed.

        Raises:
            DispatcherError: the lake cannot be written.
        """
        self.commits = removed = 0
        today = datetime.fromtimestamp(self.now(), UTC).date()
        for day, size in days_to_merge(self.lake.table(), today, self.date_column):
            alive()
            try:
                with self.refusals():
                    metrics = self.lake.table().optimize.compact(
                        partition_filters=None if day is None else [(self.date_column, "=", day)],
                        target_size=size,
                        writer_properties=WriterProperties(compression="ZSTD", compression_level=COMPRESSION_LEVEL),
                    )
            except CommitFailedError:
                # Another process merged or deleted in the same day. The next run finds what is left to do.
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


def days_to_merge(table: DeltaTable, today: date, date_column: str = "date") -> list[tuple[str | None, int]]:
    """Return (day as text, target size) for each day in which some partition has files worth merging.

    The day is None for the whole of a table that is not partitioned by *date_column*.
    """
    columns = [f"partition.{name}" for name in table.metadata().partition_columns]
    dated = f"partition.{date_column}" in columns
    sizes: dict[tuple[date | None, tuple[object, ...]], list[int]] = defaultdict(list)
    for row in pa.table(table.get_add_actions(flatten=True)).select([*columns, "size_bytes"]).to_pylist():
        day = row[f"partition.{date_column}"] if dated else None
        if day is not None or not dated:
            sizes[day, tuple(row[name] for name in columns)].append(row["size_bytes"])
    found = ((day, merged_size(files, day is not None and day < today)) for (day, _), files in sizes.items())
    merged = {(None if day is None else day.isoformat(), size) for day, size in found if size is not None}
    return sorted(merged, key=lambda pair: (pair[0] or "", pair[1]))


def merged_size(sizes: Sequence[int], closed: bool) -> int | None:
    """Return the target size for merging the files of one topic and day, None if merging is not worth it.

    *closed*: the day gets no more files.
    """
    if closed:
        small = sum(size < SMALL_SIZE for size in sizes)
        worth = len(sizes) > 1 and (small > 0 or sum(size < TARGET_SIZE // 2 for size in sizes) > 1)
        return TARGET_SIZE if worth else None
    for target in OPEN_DAY_SIZES:
        # Any two files below half the target fit into one.
        if sum(size < target // 2 for size in sizes) > ALIKE_FILES_MAX:
            return target
    return None
