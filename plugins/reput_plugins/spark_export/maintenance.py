"""Maintenance of a lake: merge small files, remove orphans. The rows stay the same, even if a process is killed."""

from __future__ import annotations

import contextlib
import re
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime

from reput_plugins.spark_export.lake_location import LakeLocation, lake_errors
from reput_plugins.spark_export.lakes.deletion_vectors import FOLDER
from reput_plugins.spark_export.lakes.lake_table import CommitConflict, LakeTable
from reput_plugins.spark_export.lakes.opening import find_table, open_table
from reput_plugins.spark_export.parquet_files import TARGET_SIZE

__all__ = ["Maintenance", "days_to_merge", "merged_size"]

VACUUM_HOURS = 168
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
VECTORS_FILE = re.compile(rf"{FOLDER}/deletion_vector_{UUID}\.bin")
# The names that pyiceberg gives the files of a table's metadata.
METADATA_FILE = re.compile(
    rf"metadata/(snap-[0-9]+-[0-9]+-{UUID}\.avro|{UUID}-m[0-9]+\.avro|[0-9]{{5,}}-{UUID}\.metadata\.json)"
)
# Transactions between two searches for files to merge.
COMMITS_BETWEEN_LOOKS = 8


class Maintenance:
    """Maintain one lake: merge files after every few transactions, and do everything every *interval_ms*.

    *date_column* names the day of the store time, if the table is partitioned by it.
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

    def file_names(self) -> frozenset[str]:
        """Return the names of the table's files; none if there is no table yet."""
        table = find_table(self.lake)
        return frozenset() if table is None else frozenset(file.path for file in table.files())

    def due(self) -> bool:
        """Return whether the interval since the last run has passed."""
        return self.now() - self.done_at >= self.interval_seconds

    def run(self, alive: Callable[[], None], *, added: frozenset[str] = frozenset()) -> int:
        """Merge small files and remove reput's orphans; return the number of files removed.

        Args:
            alive: called between the steps.
            added: names of the files of one transaction. They are not merged with each other, because their writers
                made them as large as the rows allow.

        Raises:
            DispatcherError: the lake cannot be written.
        """
        self.done_at = self.now()
        removed = self.merge(alive, added=added)
        alive()
        if self.vacuum_hours:
            unused = self.unused_files(open_table(self.lake))
            self.remove(unused)
            removed += len(unused)
        return removed

    def unused_files(self, table: LakeTable) -> list[str]:
        """Return files of reput that are old enough to be removed and that *table* does not, or no longer, name."""
        # A running batch has files that no transaction names yet; they are far younger than the limit.
        unused = table.unnamed_files(self.vacuum_hours)
        # A folder may hold unrelated files.
        kinds = (OWN_FILE, METADATA_FILE, VECTORS_FILE)
        return [name for name in unused if any(kind.fullmatch(name) for kind in kinds)]

    def remove(self, names: list[str]) -> None:
        """Remove files of the lake.

        Raises:
            DispatcherError: they cannot be removed.
        """
        with lake_errors(self.lake.address):
            self.lake.remove(names)

    def merge(self, alive: Callable[[], None], *, all_closed: bool = False, added: frozenset[str] = frozenset()) -> int:
        """Merge small files; return the number of files removed.

        *all_closed*: merge the files of the present day in the same way as those of past days. *added*: see `run`.

        Raises:
            DispatcherError: the lake cannot be written.
        """
        self.commits = removed = 0
        with contextlib.suppress(CommitConflict):
            # Another process merges the files, or the next run does.
            open_table(self.lake).trim_history()
        today = None if all_closed else datetime.fromtimestamp(self.now(), UTC).date()
        for day, size in days_to_merge(open_table(self.lake), today, self.date_column, added):
            alive()
            try:
                removed += open_table(self.lake).merge_files(day, size, self.date_column)
            except CommitConflict:
                # Another process merged or deleted in the same day. The next run finds what is left to do.
                continue
        return removed


def days_to_merge(
    table: LakeTable, today: date | None, date_column: str = "date", added: frozenset[str] = frozenset()
) -> list[tuple[str | None, int]]:
    """Return (day as text, target size) for each day in which some partition has files worth merging.

    For a table that is not partitioned by *date_column*, the day is None and stands for all rows. Days before *today*
    get no more files; if *today* is None, no day does. Partitions whose small files are all *added* are left alone.
    """
    sizes: dict[tuple[str | None, tuple[str | None, ...]], list[int]] = defaultdict(list)
    earlier: set[tuple[str | None, tuple[str | None, ...]]] = set()
    for file in table.files():
        day = file.partition.get(date_column)
        if day is not None or date_column not in file.partition:
            place = day, tuple(file.partition.values())
            sizes[place].append(file.size)
            if file.size < TARGET_SIZE // 2 and file.path not in added:
                earlier.add(place)
    found = (
        (day, merged_size(files, today is None or (day is not None and date.fromisoformat(day) < today)))
        for (day, partition), files in sizes.items()
        if (day, partition) in earlier
    )
    merged = {(day, size) for day, size in found if size is not None}
    return sorted(merged, key=lambda pair: (pair[0] or "", pair[1]))


def merged_size(sizes: Sequence[int], closed: bool) -> int | None:
    """Return the target size for merging the files of one topic and day; None if a merge is not worthwhile.

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
