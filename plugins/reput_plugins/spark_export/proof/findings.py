"""Findings about rows: how many of each kind, and the first of them by offset, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from reput_plugins.spark_export.proof.block_sums import BlockSums
from reput_plugins.spark_export.proof.proof_plan import LakeFile

__all__ = ["DIFFERENCES_SHOWN", "Differences", "FileFindings"]

# The number of differences that `check` shows for a view.
DIFFERENCES_SHOWN = 10


class Differences:
    """Counts by kind, and the first few differences in the order of the log."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.first: list[tuple[int, str]] = []

    def note(self, kind: str, commit_log_offset: int, text: str, count: int = 1) -> None:
        """Note *count* differences of one kind; *text* describes the first, at this offset."""
        self.counts[kind] += count
        self.first.append((commit_log_offset, text))
        if len(self.first) > 2 * DIFFERENCES_SHOWN:
            self.cut()

    def note_rows(self, kind: str, commit_log_offsets: Sequence[int], text: str) -> None:
        """Note a difference at each offset; *text* goes before the offset."""
        for at in sorted(commit_log_offsets)[:DIFFERENCES_SHOWN]:
            self.note(kind, at, f"{text}: commit_log_offset={at}", 0)
        self.counts[kind] += len(commit_log_offsets)

    def merge(self, other: Differences) -> None:
        """Add the differences of *other*."""
        self.counts.update(other.counts)
        self.first += other.first
        self.cut()

    def cut(self) -> None:
        """Keep the first few."""
        self.first = sorted(self.first)[:DIFFERENCES_SHOWN]


class FileFindings:
    """One file of the lake.

    Attributes:
        sums: sums of the rows that have a record at their offset.
        without_record: offsets of rows without a sound record; nothing is said about them yet, because the log may be
            damaged there, or retention may have removed it.
        row_count: number of the store's rows.
        below_count: number of these rows below the log's begin.
        offset_min, offset_max: lowest and highest offset of the store's rows.
        watermarks: numbers of watermarks, with count and sum of their rows.
        bytes_read: bytes read from the file.
    """

    def __init__(self, file: LakeFile, watermark_count: int) -> None:
        self.file = file
        self.sums = BlockSums()
        self.differences = Differences()
        self.without_record: list[int] = []
        self.row_count = 0
        self.below_count = 0
        self.offset_min: int | None = None
        self.offset_max: int | None = None
        self.watermark_rows = np.zeros(watermark_count, np.int64)
        self.watermark_sums = np.zeros(watermark_count, np.int64)
        self.bytes_read = 0
